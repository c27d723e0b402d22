"""Prompt and forced cells in progress: each keeps its places from its first loop to its last."""

from __future__ import annotations

from dataclasses import dataclass

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
from rlt_core.schedule.record import Record


@dataclass(slots=True, eq=False)
class Cell:
    """Rows start .. end - 1 of a request, running until tick `last`; columns as in
    PromptRows."""

    record: Record
    columns: I64
    start: int
    end: int
    last: int

    @property
    def has_targets(self) -> bool:
        """Whether logprobs of known tokens come out of it."""
        forced = self.record.forced
        return forced is not None and forced.target is not None


class PromptCells:
    """Cells in progress over P places; `loops` are what most rows run.

    longest: the most positions that a row in progress sees.
    """

    def __init__(self, num_places: int, loops: int) -> None:
        self.num_free, self._loops = num_places, loops
        self.longest = 0
        self._free = np.arange(num_places, dtype=np.int64)
        self._cells: list[Cell] = []
        # Cells lie one after the other from head to tail; nothing is written twice.
        self._buffer = self._new_buffer(8 * num_places)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def num_rows(self) -> int:
        """Rows in progress."""
        return len(self._free) - self.num_free

    def start(self, record: Record, start: int, end: int, tick: int) -> None:
        """Begin the cell of rows start .. end - 1; its first loop runs in `tick`."""
        forced = record.forced
        assert forced is not None, record
        top, self.num_free = self.num_free, self.num_free - (end - start)
        last = tick + forced.num_loops(start, end) - 1
        columns = self._append(end - start)
        columns[PLACE] = self._free[self.num_free : top]
        columns[SLOT] = record.slot
        columns[TOKEN] = forced.tokens[start:end]
        columns[POSITION] = np.arange(start, end)
        columns[FIRST_TICK] = tick
        columns[LAST_TICK] = last
        # The rest is as in a new buffer for most rows.
        if forced.exit_at is not None:
            columns[EXIT_AT] = forced.exit_at[start:end]
        elif forced.loops != self._loops:
            columns[EXIT_AT] = forced.loops
        if end > forced.border:
            columns[RULE, max(forced.border - start, 0) :] = 1
        if forced.target is not None:
            columns[TARGET] = forced.target[start:end]
        if end == len(forced):
            if forced.emits:
                columns[EMIT, -1] = 1
            else:
                columns[KNOWN_NEXT, -1] = forced.known_next
        self.longest = max(self.longest, end)
        self._cells.append(Cell(record, columns, start, end, last))

    def rows(self, tick: int) -> PromptRows:
        """The rows of `tick`: every cell in progress, one loop each."""
        columns = self._buffer[:, self._head : self._tail]
        starts = [0]
        for cell in self._cells:
            starts.append(starts[-1] + cell.end - cell.start)
        return PromptRows(tick=tick, columns=columns, cell_start=np.array(starts))

    def finish(self, tick: int) -> list[Cell]:
        """The cells whose last loop runs in `tick`; their places are free for the next one."""
        ended: list[Cell] = []
        kept: list[Cell] = []
        for cell in self._cells:
            (ended if cell.last == tick else kept).append(cell)
        if ended:
            self._remove(ended, kept)
        return ended

    def drop(self, record: Record) -> None:
        """Give up the cell of a request that loses its slot."""
        gone = [cell for cell in self._cells if cell.record is record]
        if gone:
            self._remove(gone, [cell for cell in self._cells if cell.record is not record])

    def _remove(self, gone: list[Cell], kept: list[Cell]) -> None:
        in_front = self._cells[: len(gone)] == gone
        self._cells = kept
        for cell in gone:
            size = cell.end - cell.start
            self._free[self.num_free : self.num_free + size] = cell.columns[PLACE]
            self.num_free += size
            self._head += size
            if cell.end == self.longest:
                self.longest = max([other.end for other in kept], default=0)
        if not in_front:
            self._renew()

    def _append(self, size: int) -> I64:
        """Room for a cell's columns behind those in progress."""
        if self._tail + size > self._buffer.shape[1]:
            self._renew()
        self._tail += size
        return self._buffer[:, self._tail - size : self._tail]

    def _renew(self) -> None:
        """A new buffer that begins with the cells in progress; ticks in flight keep the old."""
        buffer, at = self._new_buffer(self._buffer.shape[1]), 0
        for cell in self._cells:
            size = cell.end - cell.start
            buffer[:, at : at + size] = cell.columns
            cell.columns = buffer[:, at : at + size]
            at += size
        self._buffer, self._head, self._tail = buffer, 0, at

    def _new_buffer(self, size: int) -> I64:
        """Rows of the prompt's rule that have no target, emit nothing and know no next token."""
        buffer = np.zeros((NUM_PROMPT_COLUMNS, size), np.int64)
        buffer[[KNOWN_NEXT, TARGET]] = -1
        buffer[EXIT_AT] = self._loops
        return buffer
