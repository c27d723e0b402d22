"""Host side of the KV pool: which page holds what. Numpy only, vectorised over slots.

A request holds page columns: column c covers positions c * page_size onwards, with one page for
each page-table row that the request's phase uses (its planes while the prompt runs, the kept ones
afterwards, boundary tracks always). So the pages of a slot are exactly rows(kind) x columns,
where the kind is (phase, loops), and no table is ever searched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlt_core.contract.errors import CapacityError
from rlt_core.kv.page_kinds import padded, page_kinds, row_index
from rlt_core.kv.plan import SENTINEL_PAGE, KVPlan

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
B8 = NDArray[np.bool_]

_NONE: I64 = np.zeros(0, np.int64)
_NO_PAGES: I32 = np.zeros(0, np.int32)
_MOST_KNOWN, _MOST_IDS = 1024, 1 << 20
_DECODE, _DROPPED = 1, 2  # a kind is phase * max_depth + loops - 1; the prompt is phase 0


class HostPages:
    """Page tables, free pages and limits of all slots; `slots` and positions are int64 arrays [N].

    table int32 [num_slots, table_rows, pages_per_row], 0 where there is no page. columns int64
    [num_slots]. page_limit int32 [num_slots]: the positions that have pages. With `shuffle_seed`
    free pages come in random order, so that reuse is adversarial; else the last freed come first.
    """

    def __init__(
        self,
        plan: KVPlan,
        num_slots: int,
        pages_per_row: int,
        num_pages: int,
        shuffle_seed: int | None = None,
    ) -> None:
        self.plan, self.num_pages, self.pages_per_row = plan, num_pages, pages_per_row
        self.table: I32 = np.zeros((num_slots, plan.table_rows, pages_per_row), np.int32)
        self.page_limit: I32 = np.zeros(num_slots, np.int32)
        self.columns: I64 = np.zeros(num_slots, np.int64)
        self._flat_table, self._by_slot = self.table.reshape(-1), self.table.reshape(num_slots, -1)
        # Looked up where they take little memory, which costs half of an addition.
        ids = np.arange(self.table.size if self.table.size <= _MOST_IDS else 0)
        self._ids: I64 | None = ids.reshape(num_slots, -1) if len(ids) else None
        self._kind: I64 = np.zeros(num_slots, np.int64)
        self._shift = plan.page_size.bit_length() - 1  # page sizes are powers of two
        self._last_offset = plan.page_size - 1
        self._base: I64 = np.arange(num_slots) * (plan.table_rows * pages_per_row)
        kinds = page_kinds(plan)
        self._rows, self._has_row = padded(kinds, pages_per_row)
        self._rows_of = [row_index(rows) for rows in kinds]
        self._slot_entries = plan.table_rows * pages_per_row
        self._offsets = np.arange(self._slot_entries).reshape(-1, pages_per_row)
        self._known_offsets: dict[tuple[int, int], I64] = {}
        self._num_rows: I64 = self._has_row.sum(1)
        self._rng = None if shuffle_seed is None else np.random.default_rng(shuffle_seed)
        # A stack: entries below num_free are free, the next one given is the topmost.
        self._stack: I32 = np.arange(num_pages, 0, -1, dtype=np.int32) - 1
        self.num_free = num_pages - 1
        if self._rng is not None:
            self._rng.shuffle(self._stack[: self.num_free])
        self._changed: list[I64] = []
        self._freed: list[I32] = []

    @property
    def num_usable(self) -> int:
        """Pages that can be given: all but the sentinel."""
        return self.num_pages - 1

    def columns_needed(self, positions: I64) -> I64:
        """Page columns that cover `positions` positions, elementwise."""
        columns: I64 = (positions + self._last_offset) >> self._shift
        return columns

    def pages_needed(self, slots: I64, to_positions: I64) -> I64:
        """Pages that each slot lacks to hold `to_positions` positions."""
        lacking = self.columns_needed(to_positions) - self.columns[slots]
        pages: I64 = np.maximum(lacking, 0) * self.growth(slots)
        return pages

    def growth(self, slots: I64) -> I64:
        """Pages of one more column of each slot."""
        pages: I64 = self._num_rows[self._kind[slots]]
        return pages

    def can_grow(self, slots: I64, to_positions: I64) -> bool:
        """Whether all of these slots can be grown together."""
        if not np.count_nonzero(to_positions > self.page_limit[slots]):
            return True
        return int(np.add.reduce(self.pages_needed(slots, to_positions))) <= self.num_free

    def admit(
        self, slot: int, loops: int, to_position: int = 0, *, has_prompt: bool = True
    ) -> None:
        """A slot without pages begins a request of `loops` loops, with its prompt if it has one
        and with pages for `to_position` positions, which the caller knows to be there."""
        assert not self.columns[slot], f"slot {slot} still holds pages"
        kind = loops - 1 if has_prompt else _DECODE * self.plan.max_depth + loops - 1
        self._kind[slot] = kind
        columns = (to_position + self._last_offset) >> self._shift
        if columns:
            if columns > self.pages_per_row:
                raise self._too_wide(columns)
            offsets = self._offsets_of(kind, columns)
            assert len(offsets) <= self.num_free, f"{len(offsets)} pages, {self.num_free} free"
            self._by_slot[slot][offsets] = self._pop(len(offsets))
            self.columns[slot], self.page_limit[slot] = columns, columns << self._shift
            self._changed.append(self._flat(slot, offsets))

    def grow(self, slots: I64, to_positions: I64) -> None:
        """Give distinct slots pages for `to_positions` positions; those that have them keep
        theirs. All or nothing: raises CapacityError when the free pages do not suffice."""
        if not self.try_grow(slots, to_positions):
            wanted = int(self.pages_needed(slots, to_positions).sum())
            raise CapacityError(f"{wanted:,} KV pages asked for; {self.num_free:,} are free")

    def try_grow(self, slots: I64, to_positions: I64) -> bool:
        """`grow` that answers False, and changes nothing, when the free pages do not suffice."""
        short = (to_positions > self.page_limit[slots]).nonzero()[0]
        return not len(short) or self.try_extend(slots[short], to_positions[short])

    def try_extend(self, slots: I64, to_positions: I64, leaving: int = 0) -> bool:
        """`try_grow` of slots that all lack pages; False also when fewer than `leaving` free pages
        would be left."""
        start, stop = self.columns.take(slots), self.columns_needed(to_positions)
        if (most := int(stop[stop.argmax()])) > self.pages_per_row:
            raise self._too_wide(most)
        flat = self._entries(slots, start, stop, self._kind.take(slots))
        if len(flat) > self.num_free - leaving:
            return False
        self._flat_table[flat] = self._pop(len(flat))
        self._set_columns(slots, stop)
        self._changed.append(flat)
        return True

    def drop_planes(self, slot: int) -> None:
        """The prompt of this slot is done: free the planes that decoding does not use.
        Nothing happens to a slot that was told before."""
        depth, loops = self.plan.max_depth, int(self._kind[slot])
        if loops >= _DECODE * depth:
            return
        offsets = self._offsets_of(_DROPPED * depth + loops, int(self.columns[slot]))
        self._kind[slot] = _DECODE * depth + loops
        if len(offsets):
            self._clear(slot, offsets)
            self._changed.append(self._flat(slot, offsets))

    def free(self, slot: int) -> None:
        """Take all pages of this slot; its request ended or was preempted. The entries are no
        changes: the device empties the tables of a slot that is cleared."""
        offsets = self._offsets_of(int(self._kind[slot]), int(self.columns[slot]))
        self.columns[slot] = self.page_limit[slot] = 0
        if len(offsets):
            self._clear(slot, offsets)

    def take_changes(self) -> tuple[I64, I32]:
        """(flat table index, page) of every entry changed since the last call, but for those of
        slots that were freed. An entry changed twice comes twice, both with its value of now."""
        if not self._changed:
            return _NONE, _NO_PAGES
        flat = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed = []
        return flat, self._flat_table.take(flat)

    def take_freed(self) -> I32:
        """Pages freed since the last call, given again or not: int32 [N]."""
        if not self._freed:
            return _NO_PAGES
        pages = self._freed[0] if len(self._freed) == 1 else np.concatenate(self._freed)
        self._freed = []
        return pages

    def check(self) -> None:
        """Raise AssertionError unless every page is in exactly one place and limits agree."""
        held = self.table[self.table != SENTINEL_PAGE]
        every = np.sort(np.concatenate((held, self._stack[: self.num_free])))
        wanted = np.arange(1, self.num_pages)
        assert np.array_equal(every, wanted), f"pages are lost or double: {every}"
        limits = self.columns * self.plan.page_size
        assert np.array_equal(self.page_limit, limits), f"{self.page_limit} is not {limits}"
        slots = np.arange(len(self.columns))
        flat = self._entries(slots, np.zeros_like(slots), self.columns, self._kind)
        rightful = np.zeros(self._flat_table.size, np.bool_)
        rightful[flat] = True
        stray = np.flatnonzero(rightful != (self._flat_table != SENTINEL_PAGE))
        assert not len(stray), f"entries with a page too many or too few: {stray}"

    def _entries(self, slots: I64, start: I64, stop: I64, kind: I64) -> I64:
        """Flat table indices of the rows of each slot's kind, columns start to stop."""
        base = (self._base[slots] + start)[:, None] + self._rows.take(kind, 0)
        has_row, width = self._has_row.take(kind, 0), stop - start
        most = int(np.maximum.reduce(width, initial=0))
        if not np.count_nonzero(width != most):
            base = base[has_row]
            return base if most == 1 else (base[:, None] + np.arange(most)).ravel()
        columns = np.arange(most)
        wanted = has_row[:, :, None] & (columns < width[:, None])[:, None]
        return (base[:, :, None] + columns)[wanted]

    def _offsets_of(self, kind: int, columns: int) -> I64:
        """Indices of the first columns of a kind's rows in one slot's table."""
        offsets = self._known_offsets.get((kind, columns))
        if offsets is None:
            offsets = self._offsets[self._rows_of[kind], :columns].ravel()
            if len(self._known_offsets) == _MOST_KNOWN:
                self._known_offsets.clear()
            self._known_offsets[kind, columns] = offsets
        return offsets

    def _flat(self, slot: int, offsets: I64) -> I64:
        ids = self._ids
        flat: I64 = offsets + slot * self._slot_entries if ids is None else ids[slot].take(offsets)
        return flat

    def _set_columns(self, slots: I64, columns: I64) -> None:
        self.columns[slots] = columns
        self.page_limit[slots] = columns << self._shift

    def _clear(self, slot: int, offsets: I64) -> None:
        entries = self._by_slot[slot]
        pages = entries[offsets]
        entries[offsets] = SENTINEL_PAGE
        self._freed.append(pages)
        top, self.num_free = self.num_free, self.num_free + len(pages)
        if self._rng is None:
            self._stack[top : self.num_free] = pages
        else:
            self._shuffle_in(self._rng, pages, top)

    def _pop(self, count: int) -> I32:
        top, self.num_free = self.num_free, self.num_free - count
        return self._stack[self.num_free : top]

    def _shuffle_in(self, rng: np.random.Generator, pages: I32, top: int) -> None:
        places = rng.integers(0, top + 1, len(pages))
        self._stack[: self.num_free] = np.insert(self._stack[:top], places, rng.permutation(pages))

    def _too_wide(self, columns: int) -> CapacityError:
        size = self.plan.page_size
        return CapacityError(
            f"{columns * size:,} positions asked for one request; its page table has "
            f"{self.pages_per_row * size:,}"
        )
