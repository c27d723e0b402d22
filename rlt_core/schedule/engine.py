"""The engine: a scheduler and an executor, ticks kept in flight between them."""

from __future__ import annotations

from typing import Protocol

from rlt_core.runtime.batch import I32, I64, TickInput, TickOutput
from rlt_core.schedule.request import EngineRequest, Events, TickCounts
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.schedule.stats import EngineStats


class TickExecutor(Protocol):
    """Runs ticks in the order in which they were submitted."""

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        ...

    def submit(self, tick: TickInput) -> None:
        """Launch a tick; need not wait for it."""
        ...

    def collect(self) -> TickOutput:
        """The oldest tick's results; waits for them."""
        ...


class Engine:
    """Runs requests. One call of `step` submits what can run and collects one tick."""

    def __init__(self, scheduler: Scheduler, executor: TickExecutor) -> None:
        self._scheduler, self._executor = scheduler, executor

    @property
    def counts(self) -> TickCounts:
        """What the run contained so far."""
        return self._scheduler.counts

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self._scheduler.has_work

    def add(self, request: EngineRequest) -> None:
        """Queue a request; RequestError when it can never run."""
        self._scheduler.add(request)

    def abort(self, request_id: int) -> None:
        """End a request now; unknown and finished ones are ignored."""
        self._scheduler.abort(request_id)

    def put_masks(self, request_id: I64, index: I64, words: I32) -> None:
        """Masks of requests' next outputs (stage.messages.Masks)."""
        self._scheduler.put_masks(request_id, index, words)

    def step(self) -> Events:
        """Submit the ticks that can run, collect the oldest in flight, tell what it gave.

        The events may be empty. A tick that nobody could build while requests wait and nothing is
        in flight is a fault of rlt, and raised.
        """
        while (tick := self._scheduler.next_tick()) is not None:
            self._executor.submit(tick)
        if self._executor.num_in_flight:
            return self._scheduler.apply(self._executor.collect())
        events = self._scheduler.flush()
        if not len(events.request_id) and self._scheduler.has_work:
            raise RuntimeError("the scheduler made no progress: requests wait and nothing runs")
        return events

    def stats(self) -> EngineStats:
        """Gauges and counters; row_loops are those of prompt rows alone."""
        return self._scheduler.stats()

    def close(self) -> None:
        """Collect what is in flight; the executor's memory goes with the engine."""
        while self._executor.num_in_flight:
            self._scheduler.apply(self._executor.collect())
