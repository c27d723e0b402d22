"""Where the entries of a slot's rows and columns lie in the page tables of all slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlt_core.kv.page_kinds import padded, row_index

I64 = NDArray[np.int64]

_MOST_KNOWN, _MOST_IDS = 1024, 1 << 20


class TableIndex:
    """Indices into tables [num_slots, table_rows, pages_per_row], by the kind of a slot.

    num_rows int64 [kinds]: table rows of each kind (kv.page_kinds).
    """

    def __init__(
        self,
        kinds: Sequence[tuple[int, ...]],
        num_slots: int,
        table_rows: int,
        pages_per_row: int,
    ) -> None:
        self._slot_entries = table_rows * pages_per_row
        # Looked up where they take little memory, which costs half of an addition.
        size = num_slots * self._slot_entries
        ids = np.arange(size if size <= _MOST_IDS else 0)
        self._ids: I64 | None = ids.reshape(num_slots, -1) if len(ids) else None
        self._base: I64 = np.arange(num_slots) * self._slot_entries
        self._rows, self._has_row = padded(list(kinds), pages_per_row)
        self._rows_of = [row_index(rows) for rows in kinds]
        self._offsets = np.arange(self._slot_entries).reshape(-1, pages_per_row)
        self._known_offsets: dict[tuple[int, int, int], I64] = {}
        self.num_rows: I64 = self._has_row.sum(1)
        self._num_rows: list[int] = self.num_rows.tolist()

    def entries(self, slots: I64, start: I64, stop: I64, kind: I64) -> I64:
        """Flat table indices of the rows of each slot's kind, columns start to stop."""
        first, width = (self._base[slots] + start)[:, None], stop - start
        (least, most), (lowest, highest) = _extremes(width), _extremes(kind)
        if lowest == highest and most == 1 == least:
            # The usual case: all are of one kind and get one column more.
            one: I64 = (first + self._rows[lowest, : self._num_rows[lowest]]).ravel()
            return one
        columns, has_row = np.arange(most), self._has_row[kind]
        wanted = has_row[:, :, None] & (columns < width[:, None])[:, None]
        return ((first + self._rows[kind])[:, :, None] + columns)[wanted]

    def offsets(self, kind: int, columns: int, start: int = 0) -> I64:
        """Indices of the columns from `start` of a kind's rows in one slot's table."""
        offsets = self._known_offsets.get((kind, start, columns))
        if offsets is None:
            offsets = self._offsets[self._rows_of[kind], start:columns].ravel()
            if len(self._known_offsets) == _MOST_KNOWN:
                self._known_offsets.clear()
            self._known_offsets[kind, start, columns] = offsets
        return offsets

    def flat(self, slot: int, kind: int, columns: int, start: int = 0) -> I64:
        """Flat table indices of the columns from `start` of a slot whose kind this is."""
        offsets, ids = self.offsets(kind, columns, start), self._ids
        flat: I64 = offsets + slot * self._slot_entries if ids is None else ids[slot][offsets]
        return flat


def _extremes(values: I64) -> tuple[int, int]:
    """The least and the largest; a place is found in a fifth of the time of a reduction."""
    return values.item(values.argmin()), values.item(values.argmax())
