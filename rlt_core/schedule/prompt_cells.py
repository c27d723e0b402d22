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
        # A row of the prompt's rule that has no target, emits nothing and knows no next token.
        self._common: I64 = np.zeros(NUM_PROMPT_COLUMNS, np.int64)
        self._common[[KNOWN_NEXT, TARGET]] = -1

    def start(self, record: Record, forced: Forced, size: int, tick: int) -> None:
        """Begin the cell of a request's next `size` rows; its first loop runs in `tick`."""
        start, end = record.next_start, record.next_start + size
        self.num_free -= size
        last = tick + forced.num_loops(start, end) - 1
        rows, common = self._append(size), self._common
        common[SLOT], common[EXIT_AT] = record.slot, forced.loops
        common[FIRST_TICK], common[LAST_TICK] = tick, last
        rows[:] = common
        rows[:, PLACE] = self._free[self.num_free : self.num_free + size]
        rows[:, TOKEN] = forced.tokens[start:end]
        rows[:, POSITION] = self._positions[start:end]
        if forced.exit_at is not None:
            rows[:, EXIT_AT] = forced.exit_at[start:end]
        if end > forced.border:
            rows[max(forced.border - start, 0) :, RULE] = 1
        if forced.target is not None:
            rows[:, TARGET] = forced.target[start:end]
        if end == len(forced.tokens):
            if forced.emits:
                rows[-1, EMIT] = 1
            else:
                rows[-1, KNOWN_NEXT] = forced.known_next
        self.longest = max(self.longest, end)
        record.next_start = end
        record.newest = Cell(record, forced, rows, start, end, tick, last)
        self.running.append(record.newest)

    def rows(self, tick: int) -> PromptRows:
        """The rows of `tick`: every cell in progress, one loop each."""
        rows = self._buffer[self._head : self._tail]
        starts = [0]
        for cell in self.running:
            starts.append(starts[-1] + cell.end - cell.start)
        return PromptRows(tick=tick, columns=rows.T, cell_start=np.array(starts, np.int64))

    def finish(self, tick: int) -> list[Cell]:
        """The cells whose last loop runs in `tick`; their places are free for the next one."""
        ended: list[Cell] = []
        kept: list[Cell] = []
        for cell in self.running:
            (ended if cell.last == tick else kept).append(cell)
        if ended:
            self._remove(ended, kept)
        return ended

    def drop(self, record: Record) -> None:
        """Give up the cells of a request that loses its slot."""
        record.newest = None
        gone = [cell for cell in self.running if cell.record is record]
        if gone:
            self._remove(gone, [cell for cell in self.running if cell.record is not record])

    def _remove(self, gone: list[Cell], kept: list[Cell]) -> None:
        in_front = self.running[: len(gone)] == gone
        self.running = kept
        for cell in gone:
            size = cell.end - cell.start
            self._free[self.num_free : self.num_free + size] = cell.rows[:, PLACE]
            self.num_free += size
            self._head += size
            if cell.end == self.longest:
                self.longest = max([other.end for other in kept], default=0)
        if not in_front:
            self._renew()

    def _append(self, size: int) -> I64:
        """Room for a cell's rows behind those in progress."""
        if self._tail + size > len(self._buffer):
            self._renew()
        self._tail += size
        return self._buffer[self._tail - size : self._tail]

    def _renew(self) -> None:
        """A new buffer that begins with the cells in progress; ticks in flight keep the old."""
        buffer, at = np.empty_like(self._buffer), 0
        for cell in self.running:
            size = cell.end - cell.start
            buffer[at : at + size] = cell.rows
            cell.rows = buffer[at : at + size]
            at += size
        self._buffer, self._head, self._tail = buffer, 0, at
