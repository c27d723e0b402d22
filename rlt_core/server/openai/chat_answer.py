"""One of the answers of a chat request: reasoning, content and tool calls as they grow."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlt_core.api.outputs import Increment, Logprob
from rlt_core.server.openai.chat_response import (
    ChatMessage,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from rlt_core.server.tool_calls.parts import CallDelta, Parts, ToolParser


@dataclass(slots=True)
class AnswerPart:
    """What an answer gained, or, summed up, the whole of it."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    exit_depths: list[int] = field(default_factory=list)
    tables: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it can be shown: what came is held back."""
        return not (self.content or self.reasoning or self.calls or self.finish_reason)


class ChatAnswer:
    """Reads increments of one answer.

    parser: None where no tool may be called. one_call: the answer ends with its first call, and
    `ended` says so; what comes of it afterwards is dropped.
    """

    def __init__(self, parser: ToolParser | None, *, one_call: bool) -> None:
        self._parser, self._one_call = parser, one_call
        self._has_calls, self._cut = False, False
        self.ended = False

    def take(self, increment: Increment) -> AnswerPart:
        """What the answer gained; nothing once it has ended."""
        if self.ended:
            return AnswerPart()
        parts = self._parse(increment)
        part = AnswerPart(
            content=parts.content,
            reasoning=increment.reasoning,
            calls=[_delta(call) for call in parts.calls],
            token_ids=list(increment.token_ids),
            exit_depths=list(increment.exit_depths),
            tables=list(increment.logprobs or ()),
        )
        self._has_calls |= bool(parts.calls)
        self.ended = self._cut or increment.finish_reason is not None
        if self.ended:
            part.finish_reason = self._finish_reason(increment.finish_reason)
            part.stop_reason = increment.stop_reason
        return part

    def _parse(self, increment: Increment) -> Parts:
        if self._parser is None:
            return Parts(increment.text)
        # A single call ends the answer at its last character, wherever the tokens are cut.
        pieces = list(increment.text) if self._one_call else [increment.text]
        found = Parts()
        for piece in pieces:
            _add(found, self._parser.feed(piece))
            if self._one_call and self._parser.num_complete:
                self._cut = True
                return found
        if increment.finish_reason is not None:
            _add(found, self._parser.flush())
        return found

    def _finish_reason(self, reason: str | None) -> FinishReason:
        if reason == "length":
            return "length"
        return "tool_calls" if self._has_calls else "stop"


def merged(parts: Sequence[AnswerPart]) -> AnswerPart:
    """The parts of one answer as one."""
    return AnswerPart(
        content="".join(part.content for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        calls=[call for part in parts for call in part.calls],
        token_ids=[token for part in parts for token in part.token_ids],
        exit_depths=[depth for part in parts for depth in part.exit_depths],
        tables=[table for part in parts for table in part.tables],
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
    )


def message(answer: AnswerPart) -> ChatMessage:
    """A whole answer as a message."""
    calls = _calls(answer.calls)
    found = ChatMessage(
        role="assistant", content=None if calls and not answer.content else answer.content
    )
    if answer.reasoning:
        found.reasoning_content = answer.reasoning
    if calls:
        found.tool_calls = calls
    return found


def _calls(deltas: Sequence[ToolCallDelta]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.function.name is not None:
            function = FunctionCall(name=delta.function.name, arguments="")
            calls.append(ToolCall(id=delta.id or "", type="function", function=function))
        calls[delta.index].function.arguments += delta.function.arguments
    return calls


def _delta(call: CallDelta) -> ToolCallDelta:
    if call.name is None:
        return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
    return ToolCallDelta(
        index=call.index,
        id=f"call_{uuid.uuid4().hex[:24]}",
        type="function",
        function=FunctionDelta(name=call.name, arguments=call.arguments),
    )


def _add(found: Parts, more: Parts) -> None:
    found.content += more.content
    found.calls += more.calls
