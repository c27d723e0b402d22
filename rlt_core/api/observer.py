"""What a server counts of the requests that pass through an AsyncLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlt_core.api.inbox import StreamTimes
from rlt_core.api.outputs import Increment


class Observer(Protocol):
    """Called on the event loop; it must be quick and must not raise."""

    def sent(self, num_prompt_tokens: int) -> None:
        """A request was accepted and sent to the stage."""
        ...

    def grew(self, times: StreamTimes, increment: Increment, seconds: float | None) -> None:
        """An answer has new tokens, `seconds` after the ones before (None: the first ones)."""
        ...

    def ended(self, times: StreamTimes, reasons: Sequence[str]) -> None:
        """A request ended: the finish reason of each answer, or of all: "abort", "error",
        "deadline"."""
        ...

    def refused(self, reason: str) -> None:
        """A request was not accepted: "busy", "invalid", "unready"."""
        ...


class NoObserver:
    """Counts nothing."""

    def sent(self, num_prompt_tokens: int) -> None: ...

    def grew(self, times: StreamTimes, increment: Increment, seconds: float | None) -> None: ...

    def ended(self, times: StreamTimes, reasons: Sequence[str]) -> None: ...

    def refused(self, reason: str) -> None: ...
