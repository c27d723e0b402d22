"""What a stage is doing and has done, in numbers for its operators."""

from __future__ import annotations

import time
from bisect import bisect_left

import msgspec
import numpy as np

from rlt_core.runtime.batch import EVENT_DEPTH, I64
from rlt_core.schedule.request import Events

# Upper bounds of the queue times' buckets, seconds; longer ones fall into a last bucket.
QUEUE_BOUNDS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# A count of one tick takes as long as one of several.
_TICKS_AT_ONCE = 16


class EngineStats(msgspec.Struct, kw_only=True):
    """Gauges of this moment, and counters since the stage began.

    Gauges: slots_used: residents. num_prompts: those of them whose prompt is in progress.
    num_waiting: without a slot, preempted ones too. pages_used, pages_free: of pages_total.
    Counters: ticks; preemptions; aborts. row_loops[d - 1]: loops run at depth d; outputs[e - 1]:
    outputs read at depth e. queue_counts: requests by the time they waited for their first slot
    (QUEUE_BOUNDS_S), queue_seconds their sum. cache_queries, cache_hits: prompts looked up in the
    prefix cache, and found there in part; cached_positions: positions that it saved;
    pages_cached: pages that only the cache holds. swapped_out, swapped_in: pages. guesses_checked,
    guesses_held, wasted_loops: what guessing tokens ahead came to.
    """

    slots_used: int = 0
    num_slots: int = 0
    num_prompts: int = 0
    num_waiting: int = 0
    pages_used: int = 0
    pages_free: int = 0
    pages_total: int = 0
    pages_cached: int = 0
    ticks: int = 0
    preemptions: int = 0
    aborts: int = 0
    row_loops: list[int] = []
    outputs: list[int] = []
    queue_counts: list[int] = []
    queue_seconds: float = 0.0
    cache_queries: int = 0
    cache_hits: int = 0
    cached_positions: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    guesses_checked: int = 0
    guesses_held: int = 0
    wasted_loops: int = 0


class QueueTimes:
    """How long requests waited for their first slot."""

    def __init__(self) -> None:
        self.counts = [0] * (len(QUEUE_BOUNDS_S) + 1)
        self.seconds = 0.0

    def ended(self, since: float) -> None:
        """A request that came at `since` (time.perf_counter) has its slot."""
        seconds = time.perf_counter() - since
        self.counts[bisect_left(QUEUE_BOUNDS_S, seconds)] += 1
        self.seconds += seconds


class OutputDepths:
    """Counts outputs by exit depth, some ticks at a time."""

    def __init__(self, max_depth: int) -> None:
        self._counts: I64 = np.zeros(max_depth + 1, np.int64)
        self._uncounted: list[I64] = []

    def count(self, events: Events) -> None:
        """A tick's outputs; entries without a token have depth 0."""
        self._uncounted.append(events.columns[EVENT_DEPTH])
        if len(self._uncounted) == _TICKS_AT_ONCE:
            self._settle()

    @property
    def outputs(self) -> list[int]:
        """Outputs read at depth 1, 2, ..."""
        self._settle()
        counts: list[int] = self._counts[1:].tolist()
        return counts

    def _settle(self) -> None:
        if self._uncounted:
            depths = np.concatenate(self._uncounted)
            self._counts += np.bincount(depths, minlength=len(self._counts))
            self._uncounted.clear()


def at_least(counts: list[int]) -> list[int]:
    """Row-loops by depth of rows that ended at depth 1, 2, ...: one at each depth up to it."""
    loops: list[int] = np.cumsum(counts[::-1])[::-1].tolist()
    return loops
