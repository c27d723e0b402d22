"""The fields that both routes share: sampling, ends, depths, streaming."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlt_core.api.sampling_params import (
    MAX_BIAS,
    MAX_SEED,
    MAX_STOP_IDS,
    SamplingParams,
)
from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.schema import (
    MAX_INT,
    MAX_STOPS,
    WHOLE,
    Body,
    Count,
    JsonTable,
    Part,
    StopText,
    Temperature,
    Text,
    TokenId,
)

Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = dict[
    Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]
]
# What a request of SamplingParams calls otherwise, or leaves out.
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "exit_policy",
    "exit_threshold",
    "exit_params",
    "loops",
    "min_loops",
    "max_loops",
    "trace",
    "extra",
)
_DEFAULTED = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "priority",
)


class StreamOptions(Part):
    """What a stream tells besides: usage in a last chunk, usage so far in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[
        Literal[False] | None, Field(description="Padding against watchers is not added.")
    ] = None


class StructuredOutputs(Part):
    """Exactly one form that the answer must have. regex is of Rust's syntax, grammar is Lark as
    llguidance reads it, or GBNF."""

    json_object: bool | None = None
    json_schema: JsonTable | bool | None = Field(default=None, alias="json")
    regex: Annotated[Text, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[Text, Field(min_length=1)]], Field(min_length=1)] | None = None
    grammar: Annotated[Text, Field(min_length=1)] | None = None

    def structured(self) -> Structured:
        """The same as SamplingParams take it; RequestError unless it is exactly one."""
        fields = type(self).model_fields
        given = {name: getattr(self, name) for name in fields}
        given = {name: value for name, value in given.items() if value is not None}
        if not given.get("json_object", True):
            del given["json_object"]
        if len(given) != 1:
            # Structured would say so in the names that Python knows.
            names = {name: field.alias or name for name, field in fields.items()}
            said = " and ".join(names[name] for name in given) or "none"
            reason = f"{said} given; exactly one of {', '.join(names.values())}"
            raise RequestError("structured_outputs", reason)
        return Structured(**given)


class SamplingFields(Body):
    """How answers are sampled, how deep tokens go, when an answer ends, how it comes back.

    null is the same as leaving a field out. Unset sampling values are those of the checkpoint's
    generation_config.json, else neutral.
    """

    model: Text | None = Field(default=None, description="A served name; left out: the only one.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128), WHOLE] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Bias, Field(max_length=MAX_BIAS)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    user: Text | None = Field(default=None, description="Yours; it changes nothing in the answer.")
    priority: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT), WHOLE] | None = None
    exit_policy: Annotated[Text, Field(description="The engine's own, or fixed.")] | None = None
    exit_threshold: float | None = None
    exit_params: dict[str, float] | None = None
    loops: Annotated[Count, Field(description="The depth D of the request.")] | None = None
    min_loops: Count | None = None
    max_loops: Count | None = None
    trace: list[Count] | None = None
    extra: (
        Annotated[
            dict[str, bool | int | float], Field(description="Options that the model declares.")
        ]
        | None
    ) = None
    return_exit_depths: bool | None = None
    return_token_ids: bool | None = None

    @property
    def num_answers(self) -> int:
        """n, 1 when unset."""
        return self.n or 1

    @property
    def part_names(self) -> dict[str, str]:
        """Name -> place of what is inside `extra` and `exit_params`: errors name it alone. What
        is set as a field of the request, too, is meant as that."""
        set_too = {name for name in type(self).model_fields if getattr(self, name) is not None}
        parts = {"extra": self.extra, "exit_params": self.exit_params}
        return {
            name: f"{part}.{name}"
            for part, values in parts.items()
            for name in values or ()
            if name not in set_too
        }

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        options = self.stream_options
        return bool(options and options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk tells the usage so far."""
        options = self.stream_options
        return bool(options and options.continuous_usage_stats)

    def sampling_params(self, **values: Any) -> SamplingParams:
        """These fields as SamplingParams, with what the route adds; RequestError for a
        combination that cannot work."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", "is for streams only\nFix: stream=true")
        for name in _SAME:
            values[name] = getattr(self, name)
        for name in _DEFAULTED:
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        values["logit_bias"] = {int(key): bias for key, bias in (self.logit_bias or {}).items()}
        if self.structured_outputs is not None:
            if values.get("structured") is not None:
                raise RequestError("structured_outputs", "another field asks for a form already")
            values["structured"] = self.structured_outputs.structured()
        return SamplingParams(**values)
