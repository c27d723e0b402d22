"""Residents that stay: all prompts first, then decoding, timed tick by tick from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    were preempted, which a pool sized for all residents never causes. checked, held, wasted:
    TickCounts' guesses_checked, guesses_held and wasted_loops, where tokens are guessed.
    """

    ticks: int
    seconds: float
    waited: float
    tokens: int
    depth: float
    halts: int
    checked: int = 0
    held: int = 0
    wasted: int = 0

    def token_ms(self, residents: int) -> float:
        """Milliseconds between two tokens of a resident, on average."""
        return self.seconds * residents / self.tokens * 1e3

    def token_ticks(self, residents: int) -> float:
        """Ticks between two tokens of a resident, on average."""
        return self.ticks * residents / self.tokens

    @property
    def host_share(self) -> float:
        """The part of the time in which the host was at work."""
        return 1 - self.waited / self.seconds


class Crowd:
    """Requests with the ids 0 to N - 1 in an engine that has no others; they end with it.
    told: hears the events of every tick."""

    def __init__(
        self,
        subject: Subject,
        requests: Sequence[EngineRequest],
        told: Callable[[Events], None] | None = None,
    ) -> None:
        self._engine, self._executor = subject.engine, subject.executor
        self._requests, self._told = requests, told
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

        def goes_on(done: int) -> bool:
            if ticks is None or done < ticks:
                return True
            return in_step and bool((self.made != self.made[0]).any())

        return self._window(goes_on)

    def until(self, made: int, *, all_of_them: bool = False) -> Window:
        """Until the first resident has made so many tokens; all_of_them: until the last has."""
        which = np.min if all_of_them else np.max
        return self._window(lambda done: bool(which(self.made) < made))

    def _window(self, goes_on: Callable[[int], bool]) -> Window:
        """Ticks for as long as goes_on(ticks so far) and not all requests have ended."""
        tokens, depths, waited, done = int(self.made.sum()), self._depths, self._executor.waited, 0
        halts, guesses, start = self._halts(), self._guesses(), perf_counter()
        while self.ended < len(self._requests) and goes_on(done):
            self._step()
            done += 1
        seconds = perf_counter() - start
        made = int(self.made.sum()) - tokens
        checked, held, wasted = (self._guesses() - guesses).tolist()
        return Window(
            ticks=done,
            seconds=seconds,
            waited=self._executor.waited - waited,
            tokens=made,
            depth=(self._depths - depths) / max(made, 1),
            halts=self._halts() - halts,
            checked=checked,
            held=held,
            wasted=wasted,
        )

    def _step(self) -> None:
        events = self._engine.step()
        if events.errors:
            raise RltError(
                f"a request failed: {next(iter(events.errors.values()))}\n"
                "Fix: other weights; another seed of --random-weights"
            )
        self._count(events)
        if self._told is not None:
            self._told(events)

    def _count(self, events: Events) -> None:
        # A request gives one token a tick at most, so that no index is there twice.
        self.made[events.request_id] += 1
        self._depths += int(events.depth.sum())
        self.ended += int(np.count_nonzero(events.finish))

    def _halts(self) -> int:
        counts = self._engine.counts
        return counts.parked_rows + counts.preemptions

    def _guesses(self) -> I64:
        counts = self._engine.counts
        return np.array([counts.guesses_checked, counts.guesses_held, counts.wasted_loops])

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
