"""What a tool parser gives: text of the answer, and what tool calls gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """What call `index` gained: its name, once, in the first; then JSON text of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Parts:
    """Text of the answer, and what calls gained, in the order in which it came."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class ToolParser(Protocol):
    """Cuts one answer into content and calls. The parts of all `feed` and the `flush` together
    are the same however the text is cut into pieces."""

    @property
    def num_complete(self) -> int:
        """Calls that have come to their end."""
        ...

    def feed(self, text: str) -> Parts:
        """What is certain now."""
        ...

    def flush(self) -> Parts:
        """What was held, now that no more text comes."""
        ...


class ToolFormat(Protocol):
    """How a checkpoint writes tool calls."""

    @property
    def tags(self) -> Sequence[str]:
        """Texts that the parser must see, though they may be special tokens."""
        ...

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A parser for one answer of a model that was shown these tools."""
        ...

    def frame(self) -> tuple[str, str]:
        """Texts before and behind the JSON object {"name", "arguments"} of a call that a grammar
        forces."""
        ...


class Body(Protocol):
    """What stands inside a call's tags, read as it comes."""

    @property
    def name(self) -> str | None:
        """The function's name once it is known."""
        ...

    def feed(self, text: str) -> tuple[str, str | None]:
        """(JSON text of arguments that is certain now, the text behind the body or None while it
        goes on)."""
        ...
