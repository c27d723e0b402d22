"""A pool of hashes: what a row reads depends on every page, plane and position before it.

Slots may share a page in the same place of their tables; nobody writes to it then.
"""

from __future__ import annotations

import numpy as np

from rlt_core.kv.plan import KVPlan, TrackPlaces
from rlt_core.runtime.batch import TickInput
from rlt_core.runtime.engine_config import EngineConfig

_WORD = (1 << 64) - 1


def mix(*values: int) -> int:
    """A 64-bit hash of integers, in order."""
    out = 0x9E3779B97F4A7C15
    for value in values:
        out = ((out ^ (value & _WORD)) * 0xBF58476D1CE4E5B9) & _WORD
        out ^= out >> 29
    return out


class FakePool:
    """Pages and page tables; every access is checked to be of a written entry."""

    def __init__(self, config: EngineConfig, kv: KVPlan) -> None:
        self._size = kv.page_size
        self._by_depth = [track for track in kv.tracks if track.per_depth]
        self._boundary = [track for track in kv.tracks if not track.per_depth]
        self._table = np.zeros((config.num_slots, kv.table_rows, config.table_width), np.int64)
        self._host: dict[int, list[int | None]] = {}
        self._pages: list[list[int | None]] = [[None] * self._size for _ in range(config.num_pages)]

    def update(self, tick: TickInput) -> None:
        """Pages go to the host; freed ones lose what they held; the page tables change; others
        come back."""
        for copy in tick.swapped_out:
            for page, place in zip(copy.pages.tolist(), copy.host.tolist(), strict=True):
                self._host[place] = list(self._pages[page])
        for page in tick.freed_pages.tolist():
            self._pages[page] = [None] * self._size
        self._table[tick.cleared] = 0
        self._table.reshape(-1)[tick.table_at] = tick.table_page
        for page in np.unique(self._table[self._table != 0]).tolist():
            places = np.argwhere(self._table == page)[:, 1:]
            assert (places == places[0]).all(), f"page {page} is in two places of a request"
        for one in tick.resumed:
            for page, place in zip(one.copy.pages.tolist(), one.copy.host.tolist(), strict=True):
                self._pages[page] = list(self._host[place])

    def write(self, slot: int, position: int, plane: int, value: int) -> None:
        """What a loop stores at its own position."""
        for track in self._by_depth:
            self._put(slot, position, track, plane, value)

    def write_boundary(self, slot: int, position: int, value: int) -> None:
        """What the coda stores."""
        for track in self._boundary:
            self._put(slot, position, track, 0, value)

    def fill(self, slot: int, position: int, source: int, plane: int) -> None:
        """Plane `plane` of a position takes the values of plane `source`."""
        for track in self._by_depth:
            for part in range(track.parts):
                value = self._get(slot, position, track.first + source * track.parts + part)
                page = self._page(slot, position, track.first + plane * track.parts + part)
                self._pages[page][position % self._size] = value

    def read(self, slot: int, position: int, read: int, write: int) -> int:
        """Plane `read` of all earlier positions, plane `write` of the row's own."""
        out = 0
        for track in self._by_depth:
            for part in range(track.parts):
                base = track.first + part
                out = mix(out, self._all(slot, position, base + read * track.parts))
                out = mix(out, self._get(slot, position, base + write * track.parts))
        return out

    def read_boundary(self, slot: int, position: int) -> int:
        """Boundary tracks, the row's own position included."""
        rows = [track.first + part for track in self._boundary for part in range(track.parts)]
        return mix(*(self._all(slot, position + 1, row) for row in rows))

    def _put(self, slot: int, position: int, track: TrackPlaces, plane: int, value: int) -> None:
        for part in range(track.parts):
            page = self._page(slot, position, track.first + plane * track.parts + part)
            assert np.count_nonzero(self._table == page) == 1, f"shared page {page} is written"
            self._pages[page][position % self._size] = mix(value, part)

    def _all(self, slot: int, end: int, row: int) -> int:
        out = 0
        for position in range(end):
            out = (out * 31 + self._get(slot, position, row)) & _WORD
        return out

    def _get(self, slot: int, position: int, row: int) -> int:
        value = self._pages[self._page(slot, position, row)][position % self._size]
        assert value is not None, f"slot {slot}, row {row}: position {position} was never written"
        return value

    def _page(self, slot: int, position: int, row: int) -> int:
        page = int(self._table[slot, row, position // self._size])
        assert page, f"slot {slot}, row {row}: no page for position {position}"
        return page
