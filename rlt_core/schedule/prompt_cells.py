"""Prompt and forced cells in progress: each keeps its places from its first loop to its last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlt_core.runtime.batch import I64, PromptRows
from rlt_core.schedule.record import Record

(
    _PLACE,
    _SLOT,
    _TOKEN,
    _POSITION,
    _EXIT,
    _RULE,
    _EMIT,
    _KNOWN,
    _TARGET,
    _FIRST,
    _LAST,
    _NUM,
) = range(12)


@dataclass(slots=True)
class Cell:
    """Rows start .. end - 1 of a request, running until tick `last`; columns int64 [_NUM, rows]."""

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
    """Cells in progress over P places."""

    def __init__(self, num_places: int) -> None:
        self.num_free = num_places
        self._free = np.arange(num_places, dtype=np.int64)
        self._cells: list[Cell] = []
        # Cells lie one after the other from head to tail; nothing is written twice.
        self._buffer = np.empty((_NUM, 8 * num_places), np.int64)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def longest(self) -> int:
        """The most positions that a row in progress sees."""
        return max((cell.end for cell in self._cells), default=0)

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
        # In the order of the columns; most rows have no target, emit nothing, know no next token.
        same = (0, record.slot, 0, 0, forced.loops, 0, 0, -1, -1, tick, last)
        columns = self._append(end - start)
        columns.T[:] = same
        columns[_PLACE] = self._free[self.num_free : top]
        columns[_TOKEN] = forced.tokens[start:end]
        columns[_POSITION] = np.arange(start, end)
        if end > forced.border:
            columns[_RULE, max(forced.border - start, 0) :] = 1
        if forced.exit_at is not None:
            columns[_EXIT] = forced.exit_at[start:end]
        if forced.target is not None:
            columns[_TARGET] = forced.target[start:end]
        if end == len(forced):
            columns[_EMIT, -1] = forced.emits
            columns[_KNOWN, -1] = forced.known_next
        self._cells.append(Cell(record, columns, start, end, last))

    def rows(self, tick: int) -> PromptRows:
        """The rows of `tick`: every cell in progress, one loop each."""
        columns = self._buffer[:, self._head : self._tail]
        starts = [0]
        for cell in self._cells:
            starts.append(starts[-1] + cell.end - cell.start)
        return PromptRows(
            place=columns[_PLACE],
            slot=columns[_SLOT],
            token=columns[_TOKEN],
            position=columns[_POSITION],
            depth=(tick + 1) - columns[_FIRST],
            exit_at=columns[_EXIT],
            rule=columns[_RULE],
            last=columns[_LAST] == tick,
            emit=columns[_EMIT] != 0,
            known_next=columns[_KNOWN],
            target=columns[_TARGET],
            cell_start=np.array(starts),
        )

    def finish(self, tick: int) -> list[Cell]:
        """The cells whose last loop runs in `tick`; their places are free for the next one."""
        ended = [cell for cell in self._cells if cell.last == tick]
        if ended:
            self._remove(ended, [cell for cell in self._cells if cell.last != tick])
        return ended

    def drop(self, record: Record) -> None:
        """Give up the cell of a request that loses its slot."""
        gone = [cell for cell in self._cells if cell.record is record]
        if gone:
            self._remove(gone, [cell for cell in self._cells if cell.record is not record])

    def _remove(self, gone: list[Cell], kept: list[Cell]) -> None:
        in_front = all(cell is other for cell, other in zip(gone, self._cells, strict=False))
        self._cells = kept
        for cell in gone:
            size = cell.end - cell.start
            self._free[self.num_free : self.num_free + size] = cell.columns[_PLACE]
            self.num_free += size
            self._head += size
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
        buffer, at = np.empty_like(self._buffer), 0
        for cell in self._cells:
            size = cell.end - cell.start
            buffer[:, at : at + size] = cell.columns
            cell.columns = buffer[:, at : at + size]
            at += size
        self._buffer, self._head, self._tail = buffer, 0, at
