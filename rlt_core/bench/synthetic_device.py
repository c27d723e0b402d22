"""A device for the host's benchmark: rows move on, leave at drawn depths, one ends each tick."""

from __future__ import annotations

from collections import deque

import numpy as np

from rlt_core.runtime.batch import TickInput, TickOutput, logprob_bits
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.request import LENGTH

_NO_TOPS = 0


class SyntheticDevice:
    """Fits schedule.engine.TickExecutor. Rows leave after `depths` loops, drawn for each token.

    From the moment `ending` is set, the row that has given the most outputs ends in every tick.
    """

    def __init__(self, config: EngineConfig, depths: tuple[int, ...], seed: int) -> None:
        num = config.num_slots
        self.ending = False
        self._depths, self._rng = np.array(depths), np.random.default_rng(seed)
        self._left, self._made = np.zeros(num, np.int64), np.zeros(num, np.int64)
        self._position, self._exit = np.zeros(num, np.int64), np.zeros(num, np.int64)
        self._live = np.zeros(num, np.bool_)
        self._results: deque[TickOutput] = deque()

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return len(self._results)

    def collect(self) -> TickOutput:
        """The oldest tick's results."""
        return self._results.popleft()

    def submit(self, tick: TickInput) -> None:
        """Run a tick's rules on arrays."""
        self._live[tick.cleared] = False
        rows = tick.decode_slots[self._live[tick.decode_slots]]
        ready = self._left[rows] > 0
        runs = rows[ready | (self._position[rows] < tick.page_limit[rows])]
        fresh = runs[self._left[runs] == 0]
        self._exit[fresh] = self._left[fresh] = self._rng.choice(self._depths, len(fresh))
        self._left[runs] -= 1
        leaving = runs[self._left[runs] == 0]
        self._made[leaving] += 1
        self._position[leaving] += 1
        self._results.append(self._output(tick, leaving, self._begin(tick), len(runs)))

    def _begin(self, tick: TickInput) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Slots whose prompt ends in this tick: they give their first output."""
        prompt = tick.prompt
        first = np.flatnonzero(prompt.emit & prompt.last)
        slots = prompt.slot[first]
        self._live[slots] = True
        self._left[slots], self._made[slots], self._exit[slots] = 0, 1, self._depths.max()
        self._position[slots] = prompt.position[first] + 1
        return np.asarray(slots)

    def _output(
        self,
        tick: TickInput,
        leaving: np.ndarray[tuple[int], np.dtype[np.int64]],
        first: np.ndarray[tuple[int], np.dtype[np.int64]],
        num_rows: int,
    ) -> TickOutput:
        # Like the tick program, one place a listed row and most of them empty.
        num = len(tick.decode_slots) + len(first)
        slot = np.full(num, -1, np.int64)
        slot[: len(leaving)] = leaving
        slot[num - len(first) :] = first
        finish = np.zeros(num, np.int64)
        if self.ending and len(leaving):
            last = int(np.argmax(self._made[leaving]))
            finish[last] = LENGTH
            self._live[leaving[last]] = False
        token = self._rng.integers(0, 49152, num)
        logprob = logprob_bits(self._rng.random(num, np.float32))
        rank = np.ones(num, np.int64)
        return TickOutput(
            tick=tick.tick,
            columns=np.stack((slot, token, self._exit[slot], rank, finish, logprob)),
            top_ids=np.zeros((num, _NO_TOPS), np.int64),
            top_logprobs=np.zeros((num, _NO_TOPS), np.float32),
            counts=np.array([num_rows, 0, 1, 4, len(leaving)]),
        )
