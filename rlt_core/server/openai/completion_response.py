"""What /v1/completions answers. A field that was not asked for is left out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from rlt_core.server.openai.usage import Usage

FinishReason = Literal["stop", "length"]


class CompletionLogprobs(BaseModel):
    """Entry i is about token i of the text; the first prompt token of an echo has no logprob.

    A token that is no whole text stands as bytes:\\x.. with its bytes in hexadecimal. text_offset
    counts characters of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer, or in a stream what it gained; index = place of the prompt * n + sibling."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    exit_depths: list[int] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(BaseModel):
    """The answers of a request; in a stream one of its chunks."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
