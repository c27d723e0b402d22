"""Prompt and forced cells in progress: each keeps its places from its first loop to its last.

Rows are columns of one int64 matrix, indexed by place, so that a tick's rows are one gather,
whatever the number of cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlt_core.runtime.batch import I64, PromptRows
from rlt_core.schedule.record import Record

_SLOT, _TOKEN, _POSITION, _EXIT, _RULE, _EMIT, _KNOWN, _TARGET, _FIRST, _LAST = range(10)
_NOWHERE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Cell:
    """Rows start .. end - 1 of a request, in `places`, running in ticks first .. last."""

    record: Record
    places: I64
    start: int
    end: int
    last: int


class PromptCells:
    """Cells in progress over P places."""

    def __init__(self, num_places: int) -> None:
        self.num_free = num_places
        self._free = np.arange(num_places, dtype=np.int64)
        self._rows = np.zeros((10, num_places), np.int64)
        self._cells: list[Cell] = []
        self._order = _NOWHERE
        self._starts = np.zeros(1, np.int64)
        self._changed = False

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
        left = self.num_free - (end - start)
        places = self._free[left : self.num_free].copy()
        self.num_free = left
        last = tick + forced.num_loops(start, end) - 1
        rows = self._rows
        rows[_SLOT, places] = record.slot
        rows[_TOKEN, places] = forced.tokens[start:end]
        position = np.arange(start, end)
        rows[_POSITION, places] = position
        rows[_EXIT, places] = forced.exit_at[start:end]
        rows[_RULE, places] = position >= forced.border
        rows[_EMIT, places] = 0
        rows[_KNOWN, places] = -1
        rows[_TARGET, places] = forced.target[start:end]
        rows[_FIRST, places] = tick
        rows[_LAST, places] = last
        if end == len(forced):
            rows[_EMIT, places[-1]] = forced.emits
            rows[_KNOWN, places[-1]] = forced.known_next
        self._cells.append(Cell(record, places, start, end, last))
        self._changed = True

    def rows(self, tick: int) -> PromptRows:
        """The rows of `tick`: every cell in progress, one loop each."""
        self._arrange()
        rows = self._rows[:, self._order]
        return PromptRows(
            place=self._order,
            slot=rows[_SLOT],
            token=rows[_TOKEN],
            position=rows[_POSITION],
            depth=tick + 1 - rows[_FIRST],
            exit_at=rows[_EXIT],
            rule=rows[_RULE],
            last=rows[_LAST] == tick,
            emit=rows[_EMIT] != 0,
            known_next=rows[_KNOWN],
            target=rows[_TARGET],
            cell_start=self._starts,
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
        for cell in gone:
            size = len(cell.places)
            self._free[self.num_free : self.num_free + size] = cell.places
            self.num_free += size
        self._cells, self._changed = kept, True

    def _arrange(self) -> None:
        if not self._changed:
            return
        # New arrays: the rows of ticks in flight keep the old ones.
        cells = self._cells
        self._order = np.concatenate([cell.places for cell in cells]) if cells else _NOWHERE
        self._starts = np.zeros(len(cells) + 1, np.int64)
        np.cumsum([len(cell.places) for cell in cells], out=self._starts[1:])
        self._changed = False
