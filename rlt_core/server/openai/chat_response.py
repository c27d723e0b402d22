"""What /v1/chat/completions answers. A field that was not asked for is left out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from rlt_core.server.openai.usage import Usage

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(BaseModel):
    """A token, its bytes (null without a tokenizer) and its logprob."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, and the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """All tokens of the answer, those of reasoning and tool calls too."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(BaseModel):
    """A function's name, and its arguments as JSON text, as the model wrote them."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """An answer: reasoning apart from content; content is null beside calls alone."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(BaseModel):
    """One of the n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    exit_depths: list[int] | None = None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    """The answers of a request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    service_tier: Literal["default"] | None = None
    metadata: dict[str, str] | None = None
    prompt_token_ids: list[int] | None = None


class FunctionDelta(BaseModel):
    """The name, in a call's first delta, and further text of its arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """What call `index` of an answer gained; id and type come in its first delta."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """What an answer gained."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    """What answer `index` gained."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    exit_depths: list[int] | None = None
    token_ids: list[int] | None = None


class ChatChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    service_tier: Literal["default"] | None = None
    prompt_token_ids: list[int] | None = None
