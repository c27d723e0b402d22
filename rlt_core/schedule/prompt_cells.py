"""Prompt and forced cells in progress: each keeps its places from its first loop to its last."""

from __future__ import annotations

import msgspec
import numpy as np

from rlt_core.runtime.batch import (
    EMIT,
    EXIT_AT,
    FIRST_TICK,
    I64,
    KNOWN_NEXT,
    LAST_TICK,
    NUM_PROMPT_COLUMNS,
    PLACE,
    POSITION,
    RULE,
    SLOT,
    TARGET,
    TOKEN,
    PromptRows,
)
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.record import Record


class Cell(msgspec.Struct, eq=False):
    """Positions start .. end - 1 of a request, running from tick `first` to tick `last`; rows
    int64 [end - start, NUM_PROMPT_COLUMNS], with the columns of PromptRows."""

    record: Record
    forced: Forced
    rows: I64
    start: int
    end: int
    first: int
    last: int


class PromptCells:
    """Cells in progress over P places, of requests of up to max_len positions.

    running: the cells in progress. longest: the most positions that one of their rows sees.
    """

    def __init__(self, num_places: int, max_len: int) -> None:
        self.num_places = self.num_free = num_places
        self.longest = 0
        self._free = np.arange(num_places)
        self._positions = np.arange(max_len)
        self.running: list[Cell] = []
        # Cells lie one after the other from head to tail; nothing is written twice.
        self._buffer: I64 = np.empty((8 * num_places, NUM_PROMPT_COLUMNS), np.int64)
        self._head = self._tail = 0
        self._ending: dict[int, list[Cell]] = {}  # cells in progress by their last tick
        # A row of the prompt's rule that has no target, emits nothing and knows no next token.
        self._common: I64 = np.zeros(NUM_PROMPT_COLUMNS, np.int64)
        self._common[[KNOWN_NEXT, TARGET]] = -1

    def start(self, record: Record, forced: Forced, size: int, tick: int) -> None:
        """Begin the cell of a request's next `size` rows; its first loop runs in `tick`."""
        start, end = record.next_start, record.next_start + size
        self.num_free -= size
        loops = forced.loops if forced.exit_at is None else forced.num_loops(start, end)
        last = tick + loops - 1
        if self._tail + size > len(self._buffer):
            self._renew()
        rows, common = self._buffer[self._tail : self._tail + size], self._common
        self._tail += size
        common[SLOT], common[EXIT_AT] = record.slot, forced.loops
        common[FIRST_TICK], common[LAST_TICK] = tick, last
        rows[:] = common
        rows[:, PLACE] = self._free[self.num_free : self.num_free + size]
        known = forced.tokens
        rows[:, TOKEN] = known if size == len(known) else known[start:end]
        rows[:, POSITION] = self._positions[start:end]
        if forced.exit_at is not None:
            rows[:, EXIT_AT] = forced.exit_at[start:end]
        if end > forced.border:
            rows[max(forced.border - start, 0) :, RULE] = 1
        if forced.target is not None:
            rows[:, TARGET] = forced.target[start:end]
        if end == len(known):
            if forced.emits:
                rows[-1, EMIT] = 1
            else:
                rows[-1, KNOWN_NEXT] = forced.known_next
        if end > self.longest:
            self.longest = end
        record.next_start = end
        record.newest = cell = Cell(record, forced, rows, start, end, tick, last)
        self.running.append(cell)
        if last in self._ending:
            self._ending[last].append(cell)
        else:
            self._ending[last] = [cell]

    def rows(self, tick: int) -> PromptRows:
        """The rows of `tick`: every cell in progress, one loop each."""
        rows, at, starts = self._buffer[self._head : self._tail], 0, [0]
        for cell in self.running:
            at += cell.end - cell.start
            starts.append(at)
        return PromptRows(tick=tick, columns=rows.T, cell_start=np.array(starts, np.int64))

    def finish(self, tick: int) -> list[Cell]:
        """The cells whose last loop runs in `tick`; their places are free for the next one."""
        ended = self._ending.pop(tick, None)
        if ended is None:
            return []
        self._remove(ended)
        return ended

    def drop(self, record: Record) -> None:
        """Give up the cells of a request that loses its slot."""
        record.newest = None
        gone = [cell for cell in self.running if cell.record is record]
        for cell in gone:
            self._ending[cell.last].remove(cell)
        if gone:
            self._remove(gone)

    def _remove(self, gone: list[Cell]) -> None:
        in_front = self.running[: len(gone)] == gone
        for cell in gone:
            size = cell.end - cell.start
            self._free[self.num_free : self.num_free + size] = cell.rows[:, PLACE]
            self.num_free += size
            self._head += size
            if cell.end == self.longest:
                self.longest = 0
        if in_front:
            del self.running[: len(gone)]
        else:
            self.running = [cell for cell in self.running if cell not in gone]
            self._renew()
        if not self.longest:
            self.longest = max([cell.end for cell in self.running], default=0)

    def _renew(self) -> None:
        """A new buffer that begins with the cells in progress; ticks in flight keep the old."""
        buffer, at = np.empty_like(self._buffer), 0
        for cell in self.running:
            size = cell.end - cell.start
            buffer[at : at + size] = cell.rows
            cell.rows = buffer[at : at + size]
            at += size
        self._buffer, self._head, self._tail = buffer, 0, at
