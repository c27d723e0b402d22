"""What a user may ask for one request: checked when it is made, before any model is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError

MAX_LOGPROBS = 20
MAX_BIAS = 512
MAX_STOP_IDS = 16
MAX_SEED = 2**63 - 1
MAX_INT = 2**31 - 1  # as HTTP takes them; the engine holds 64 bits
MAX_PRIORITY = MAX_INT


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled, how deep its tokens go and when it ends.

    Unset (None) temperature, top_p, top_k, min_p and repetition_penalty take the values of the
    checkpoint's generation_config.json where it has them (temperature 0 when it says
    `do_sample: false`), else 1.0, 1.0, off, 0.0 and 1.0; an explicit value wins, 0 too.
    `RequestOutput.sampling` reports what was used.

    temperature 0 is greedy; top_k 0 or -1 is off. max_tokens None: up to the length limit.
    logprobs, prompt_logprobs: None for none, else how many alternatives (0 to 20), read before
    penalties, temperature and masks. seed None: one is drawn and reported; sibling i of n has
    its own, derived from it. stop_token_ids: at most 16 together with the model's own.

    Depth: `loops` is the depth D of the request, `min_loops` and `max_loops` bound the exits
    (from 1). exit_policy: the engine's own or "fixed". exit_threshold and exit_params are the
    policy's parameters; trace gives recorded depths by output index for the policy that asks for
    them (past its end: D).

    extra: options that the model itself declares, by name, e.g. {"state_scale": 0.0}; a table is
    the path of a .safetensors or .npy file. `rlt explain` lists them.

    priority: the smaller goes first, as far as the others have not waited long; it changes no
    answer.

    structured: the form that the answer must have, e.g. Structured(json_schema={...}); tokens that
    would leave it are never drawn.

    Raises RequestError naming the field.
    """

    n: int = 1
    max_tokens: int | None = 16
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    exit_policy: str | None = None
    exit_threshold: float | None = None
    exit_params: Mapping[str, float] | None = None
    loops: int | None = None
    min_loops: int | None = None
    max_loops: int | None = None
    trace: Sequence[int] | None = None
    extra: Mapping[str, Any] | None = None
    priority: int = 0
    structured: Structured | None = None

    def __post_init__(self) -> None:
        for name, low, high in _INTEGERS:
            value = check_integer(name, getattr(self, name), low, high, optional=name not in _GIVEN)
            _set(self, name, value)
        for name, least, most in _NUMBERS:
            check_number(name, getattr(self, name), least, most, optional=name not in _PENALTIES)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, f"{getattr(self, name)!r} is not true or false")
        self._check_ranges()
        _set(self, "stop", _stop_strings(self.stop))
        _set(self, "stop_token_ids", _integers("stop_token_ids", self.stop_token_ids))
        _set(self, "trace", None if self.trace is None else _integers("trace", self.trace, 1))
        _set(self, "logit_bias", _bias(self.logit_bias))
        _set(self, "exit_params", _params(self.exit_params))
        _set(self, "extra", _extra(self.extra))

    def _check_ranges(self) -> None:
        if self.temperature is not None and 0 < self.temperature < 1e-3:
            raise RequestError(
                "temperature", f"{self.temperature} is below 0.001; 0 asks for greedy decoding"
            )
        if self.repetition_penalty is not None and 0 < self.repetition_penalty < 0.01:
            reason = f"{self.repetition_penalty} is below 0.01: logits would overflow"
            raise RequestError("repetition_penalty", reason)
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise RequestError(name, "0 is out of range: it must be above 0")
        if self.exit_policy is not None and not isinstance(self.exit_policy, str):
            raise RequestError("exit_policy", f"{self.exit_policy!r} is not a name")
        if self.structured is not None and not isinstance(self.structured, Structured):
            raise RequestError("structured", f"{self.structured!r} is no Structured(...)")
        if self.min_loops and self.max_loops and self.min_loops > self.max_loops:
            raise RequestError("min_loops", f"{self.min_loops} is above max_loops {self.max_loops}")

    def changed(self, **values: Any) -> SamplingParams:
        """A copy with other values, checked again."""
        return replace(self, **values)


FIELDS = frozenset(field.name for field in fields(SamplingParams))

_INTEGERS: tuple[tuple[str, int, int], ...] = (
    ("n", 1, 128),
    ("max_tokens", 1, MAX_INT),
    ("top_k", -1, MAX_INT),
    ("seed", 0, MAX_SEED),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("loops", 1, MAX_INT),
    ("min_loops", 1, MAX_INT),
    ("max_loops", 1, MAX_INT),
    ("priority", -MAX_PRIORITY, MAX_PRIORITY),
)
_GIVEN = ("n", "priority")
_NUMBERS: tuple[tuple[str, float, float | None], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("exit_threshold", -math.inf, None),
)
_PENALTIES = ("presence_penalty", "frequency_penalty")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


def check_integer(
    name: str, value: object, low: int, high: int | None, *, optional: bool = False
) -> int | None:
    """A plain int; RequestError unless `value` is a whole number (no bool) of that range, or
    None."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(name, f"{value!r} is not a whole number")
    if value < low or (high is not None and value > high):
        raise RequestError(name, f"{_shown(value)} is out of range: {_range(low, high)}")
    return int(value)


def check_number(
    name: str, value: object, low: float, high: float | None, *, optional: bool = False
) -> None:
    """RequestError unless `value` is a finite number (no bool) of that range, or None."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(name, f"{value!r} is not a number")
    if isinstance(value, int) and value.bit_length() > 1000:  # no float holds it
        raise RequestError(name, f"{_shown(value)} is too large")
    if not math.isfinite(value):
        raise RequestError(name, f"{value} is not a finite number")
    if value < low or (high is not None and value > high):
        raise RequestError(name, f"{value} is out of range: {_range(low, high)}")


def _range(low: float, high: float | None) -> str:
    return f"it must be {low} or more" if high is None else f"it must be {low} to {high}"


def _shown(value: int) -> str:
    # Python refuses to write thousands of digits, and nobody reads them.
    return str(value) if value.bit_length() <= 256 else f"a number of {value.bit_length()} bits"


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)


def _stop_strings(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) for s in stops):
        raise RequestError("stop", f"{stop!r} is not a string or a list of strings")
    if "" in stops:
        raise RequestError("stop", "an empty string stops nothing")
    return tuple(stops)


def _integers(name: str, values: object, low: int = 0) -> tuple[int, ...]:
    if values is None:
        return ()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RequestError(name, f"{values!r} is not a list of whole numbers")
    for value in values:
        check_integer(name, value, low, MAX_INT)
    return tuple(int(value) for value in values)


def _bias(bias: object) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise RequestError("logit_bias", f"{bias!r} is not a table of token id to number")
    if len(bias) > MAX_BIAS:
        raise RequestError("logit_bias", f"{len(bias)} entries; at most {MAX_BIAS} are possible")
    for token, value in bias.items():
        check_integer("logit_bias", token, 0, MAX_INT)
        check_number("logit_bias", value, -100.0, 100.0)
    return {int(token): float(value) for token, value in bias.items()}


def _params(params: object) -> dict[str, float]:
    if params is None:
        return {}
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise RequestError("exit_params", f"{params!r} is not a table of name to number")
    for name, value in params.items():
        check_number(name, value, -math.inf, None)
    return dict(params)


def _extra(extra: object) -> dict[str, Any]:
    if extra is None:
        return {}
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise RequestError("extra", f"{extra!r} is not a table of a model's options by name")
    return dict(extra)
