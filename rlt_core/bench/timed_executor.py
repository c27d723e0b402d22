"""An executor that tells how long the host waited for the device."""

from __future__ import annotations

from time import perf_counter

from rlt_core.runtime.batch import TickInput, TickOutput
from rlt_core.schedule.engine import TickExecutor


class TimedExecutor:
    """Fits schedule.engine.TickExecutor. `waited`: seconds in `collect` so far."""

    def __init__(self, inner: TickExecutor) -> None:
        self._inner, self.waited = inner, 0.0

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return self._inner.num_in_flight

    def submit(self, tick: TickInput) -> None:
        """Launch a tick."""
        self._inner.submit(tick)

    def collect(self) -> TickOutput:
        """The oldest tick's results."""
        start = perf_counter()
        out = self._inner.collect()
        self.waited += perf_counter() - start
        return out
