"""The body of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from rlt_core.api.prompts import Prompt
from rlt_core.api.sampling_params import MAX_LOGPROBS, SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.sampling_fields import SamplingFields
from rlt_core.server.openai.schema import MAX_INT, WHOLE, Refused, TokenId

Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[TokenId], Field(min_length=1)]
_LEN = 16  # tokens of an answer of no said length, as the API has it


def _kind(prompt: Any) -> str | None:
    """One of the four forms, so that a wrong element is told of its own form alone; None for what
    is none of them."""
    if not isinstance(prompt, list):
        return "text" if isinstance(prompt, str) else None
    first = prompt[0] if prompt else ""
    return "texts" if isinstance(first, str) else "id_lists" if isinstance(first, list) else "ids"


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(min_length=1), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(min_length=1), Tag("id_lists")],
    Discriminator(
        _kind,
        custom_error_type="prompt_type",
        custom_error_message="Input should be a text, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(SamplingFields):
    """A text to go on with, or several."""

    refused: ClassVar[Mapping[str, str]] = {
        "suffix": "looped models are not trained to fill in the middle",
    }

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT), WHOLE] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=128), WHOLE] | None = None
    suffix: Refused

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts one by one, as AsyncLLM takes them."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [{"prompt_token_ids": self.prompt}]
        return [p if isinstance(p, str) else {"prompt_token_ids": p} for p in self.prompt]

    @property
    def prompt_names(self) -> list[str]:
        """Where the prompts are in the request."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return ["prompt"]
        return [f"prompt[{i}]" for i in range(len(self.prompt))]

    @property
    def scores_only(self) -> bool:
        """Whether the prompt is echoed and nothing generated."""
        return self.max_tokens == 0

    def params(self, limit: int | None = None) -> SamplingParams:
        """RequestError for what cannot work together. limit: the most tokens that an answer of
        this server may have; an answer of no said length has no more."""
        if self.best_of is not None and self.best_of != self.num_answers:
            raise RequestError("best_of", f"answers are not ranked; it must be n ({self.n or 1})")
        if self.scores_only and not self.echo:
            raise RequestError("max_tokens", "0 asks for the prompt alone, which needs echo=true")
        return self.sampling_params(
            max_tokens=min(_LEN, limit or _LEN)
            if self.max_tokens is None
            else max(1, self.max_tokens),
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )
