"""What an engine's ticks told, kept for tests that compare every tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlt_core.runtime.batch import TickOutput
from tests.engines import Built


def each_output(built: Built, read: Callable[[TickOutput], Any]) -> list[Any]:
    """What `read` finds in the output of every tick from now on."""
    found: list[Any] = []
    inner = built.executor.collect

    def collect() -> TickOutput:
        out = inner()
        found.append(read(out))
        return out

    # every output passes here, and only here
    built.executor.collect = collect  # type: ignore[method-assign]  # of this one executor, to watch
    return found
