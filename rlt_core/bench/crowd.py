"""Residents that stay: all prompts first, then decoding, timed tick by tick from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

import numpy as np

from rlt_core.bench.subject import Subject
from rlt_core.contract.errors import RltError
from rlt_core.runtime.batch import I64
from rlt_core.schedule.request import EngineRequest, Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of ticks, from the end of one to the end of another.

    seconds: by the host's clock; waited: of these, in which the host had nothing to do but wait
    for the device. depth: mean depth of the tokens. halts: rows that parked and requests that
    were preempted, which a pool sized for all residents never causes.
    """

    ticks: int
    seconds: float
    waited: float
    tokens: int
    depth: float
    halts: int

    def token_ms(self, residents: int) -> float:
        """Milliseconds between two tokens of a resident, on average."""
        return self.seconds * residents / self.tokens * 1e3

    @property
    def host_share(self) -> float:
        """The part of the time in which the host was at work."""
        return 1 - self.waited / self.seconds


class Crowd:
    """Requests with the ids 0 to N - 1 in an engine that has no others; they end with it."""

    def __init__(self, subject: Subject, requests: Sequence[EngineRequest]) -> None:
        self._engine, self._executor = subject.engine, subject.executor
        self._requests = requests
        self.made: I64 = np.zeros(len(requests), np.int64)
        self.ended = 0
        self._depths = 0

    def prompts(self) -> float:
        """Run all prompts; seconds until the last of the first tokens."""
        start = perf_counter()
        for request in self._requests:
            self._engine.add(request)
        while not self.made.all():
            self._step()
        return perf_counter() - start

    def advance(self, ticks: int | None = None, *, in_step: bool = False) -> Window:
        """At least `ticks` ticks (None: until every request has ended); in_step: until then all
        residents have made equally many tokens, as at the end of a cohort's round."""
        tokens, depths = int(self.made.sum()), self._depths
        halts, waited, done = self._halts(), self._executor.waited, 0
        start = perf_counter()
        while self._goes_on(ticks, done, in_step):
            self._step()
            done += 1
        seconds = perf_counter() - start
        made = int(self.made.sum()) - tokens
        return Window(
            ticks=done,
            seconds=seconds,
            waited=self._executor.waited - waited,
            tokens=made,
            depth=(self._depths - depths) / max(made, 1),
            halts=self._halts() - halts,
        )

    def _goes_on(self, ticks: int | None, done: int, in_step: bool) -> bool:
        if self.ended == len(self._requests):
            return False
        if ticks is None or done < ticks:
            return True
        return in_step and bool((self.made != self.made[0]).any())

    def _step(self) -> None:
        events = self._engine.step()
        if events.errors:
            raise RltError(
                f"a request failed: {next(iter(events.errors.values()))}\n"
                "Fix: other weights; another seed of --random-weights"
            )
        self._count(events)

    def _count(self, events: Events) -> None:
        # A request gives one token a tick at most, so that no index is there twice.
        self.made[events.request_id] += 1
        self._depths += int(events.depth.sum())
        self.ended += int(np.count_nonzero(events.finish))

    def _halts(self) -> int:
        counts = self._engine.counts
        return counts.parked_rows + counts.preemptions

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        for request in self._requests:
            self._engine.abort(request.request_id)
        while self._engine.has_work:
            self._engine.step()
