"""/v1/chat/completions: the next turn of a conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from rlt_core.server.openai.chat_answer import AnswerPart, ChatAnswer, merged, message
from rlt_core.server.openai.chat_prompt import ChatPrompt
from rlt_core.server.openai.chat_request import ChatRequest
from rlt_core.server.openai.chat_response import (
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    Choice,
    ChunkChoice,
    Delta,
)
from rlt_core.server.openai.logprobs import chat_logprobs
from rlt_core.server.openai.serving import Serving
from rlt_core.server.openai.usage import UsageCounter


class ChatRun:
    """The answers of one request: open it, then read it whole or in chunks."""

    def __init__(self, serving: Serving, body: ChatRequest) -> None:
        engine, self._body = serving.engine, body
        prompt = ChatPrompt(body, engine.chat, serving.tool_format, serving.chat_template)
        self._params = serving.limited(body.params(prompt.form(body, engine.tokenizer)))
        self._heading: dict[str, Any] = asdict(serving.heading("chatcmpl"))
        if body.service_tier is not None:
            self._heading["service_tier"] = "default"
        self._usage = UsageCounter()
        tools = [tool.tool() for tool in body.shown_tools]
        self._answers = [
            ChatAnswer(
                prompt.format.parser(tools) if prompt.format is not None else None,
                one_call=body.parallel_tool_calls is False,
            )
            for _ in range(self._params.n)
        ]
        self._stream = engine.stream(prompt.conversation, self._params, deadline=serving.deadline)

    async def open(self) -> None:
        """Sends the request."""
        await self._stream.open()
        self._usage.prompt_tokens = len(self._stream.prompt_token_ids)
        if self._body.return_token_ids:
            self._heading["prompt_token_ids"] = self._stream.prompt_token_ids

    async def whole(self) -> ChatCompletion:
        """All answers once they have ended."""
        parts: dict[int, list[AnswerPart]] = defaultdict(list)
        async for index, part in self._parts():
            parts[index].append(part)
        choices = [self._choice(index, merged(parts[index])) for index in sorted(parts)]
        found = ChatCompletion(
            **self._heading,
            object="chat.completion",
            choices=choices,
            usage=self._usage.usage(),
        )
        if self._body.metadata is not None:
            found.metadata = self._body.metadata
        return found

    async def chunks(self) -> AsyncIterator[ChatChunk]:
        """What the answers gain, as it comes. The first chunk of each says whose turn it is."""
        for index in range(len(self._answers)):
            yield self._chunk(index, Delta(role="assistant", content=""), AnswerPart())
        async for index, part in self._parts():
            if not (part.is_empty and not self._shows_tokens):
                yield self._chunk(index, _delta(part), part)
        if self._body.include_usage:
            yield self._headed(choices=[], usage=self._usage.usage())

    @property
    def used(self) -> UsageCounter:
        """What it has used so far."""
        return self._usage

    def close(self) -> None:
        """Aborts what still runs."""
        self._stream.close()

    async def _parts(self) -> AsyncIterator[tuple[int, AnswerPart]]:
        async for increment in self._stream:
            answer = self._answers[increment.index]
            if not answer.ended:
                self._usage.take(increment)
                yield increment.index, answer.take(increment)
            if all(each.ended for each in self._answers):
                break
        self._usage.cached_tokens = self._stream.output.usage.cached_tokens
        self._stream.close()

    @property
    def _shows_tokens(self) -> bool:
        body = self._body
        return bool(body.logprobs or body.return_exit_depths or body.return_token_ids)

    def _choice(self, index: int, answer: AnswerPart) -> Choice:
        choice = Choice(
            index=index,
            message=message(answer),
            logprobs=self._logprobs(answer),
            finish_reason=answer.finish_reason or "stop",
        )
        self._add_tokens(choice, answer)
        return choice

    def _chunk(self, index: int, delta: Delta, part: AnswerPart) -> ChatChunk:
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=self._logprobs(part) if part.tables else None,
            finish_reason=part.finish_reason,
        )
        self._add_tokens(choice, part)
        chunk = self._headed(choices=[choice])
        if self._body.continuous_usage:
            chunk.usage = self._usage.usage()
        elif self._body.include_usage:
            chunk.usage = None  # the API has it in every chunk
        return chunk

    def _headed(self, **fields: Any) -> ChatChunk:
        return ChatChunk(**self._heading, object="chat.completion.chunk", **fields)

    def _logprobs(self, part: AnswerPart) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(part.tables, self._body.top_logprobs or 0)

    def _add_tokens(self, choice: Choice | ChunkChoice, part: AnswerPart) -> None:
        if part.stop_reason is not None:
            choice.stop_reason = part.stop_reason
        if self._body.return_exit_depths:
            choice.exit_depths = part.exit_depths
        if self._body.return_token_ids:
            choice.token_ids = part.token_ids


def _delta(part: AnswerPart) -> Delta:
    delta = Delta()
    if part.reasoning:
        delta.reasoning_content = part.reasoning
    if part.content:
        delta.content = part.content
    if part.calls:
        delta.tool_calls = part.calls
    return delta
