"""What a model asked of its context in a launch: attend calls and options."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rlt_core.contract.protocols import LoopContext
from rlt_core.testing.checks.rig import Rig

PREVIOUS = "previous()"


@dataclass(frozen=True, slots=True)
class Attended:
    """One call: (heads, head size) of q, k and v, and whether it was to be stored."""

    track: str
    layer: int
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    store: bool


class Recorder:
    """While it is entered, contexts of the rig note their attend calls (`take` gives them) and
    the options that were read: `options` holds their names, and PREVIOUS."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._calls = rig, list[Attended]()
        self.options: set[str] = set()

    def take(self) -> list[Attended]:
        """The calls since the last take."""
        calls, self._calls[:] = list(self._calls), []
        return calls

    def __enter__(self) -> Recorder:
        self._rig.watch = lambda ctx: _Noting(ctx, self._calls, self.options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rig.watch = None


class _Noting:
    """A context that notes what it is asked and passes everything on."""

    def __init__(self, ctx: LoopContext, calls: list[Attended], options: set[str]) -> None:
        self._ctx, self._calls, self._options = ctx, calls, options

    def attend(self, track: str, layer: int, q: Any, k: Any, v: Any, **how: Any) -> Any:
        sizes = [tuple(x.shape[1:]) for x in (q, k, v)]
        stored = how.get("store", True)
        self._calls.append(Attended(track, layer, sizes[0], sizes[1], sizes[2], stored))
        return self._ctx.attend(track, layer, q, k, v, **how)

    def option(self, name: str) -> Any:
        self._options.add(name)
        return self._ctx.option(name)

    def option_table(self, name: str) -> Any:
        self._options.add(name)
        return self._ctx.option_table(name)

    def previous(self) -> Any:
        self._options.add(PREVIOUS)
        return self._ctx.previous()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)
