"""Host side of the KV pool: which page holds what. Numpy only, vectorised over slots.

A request holds page columns: column c covers positions c * page_size onwards, with one page for
each page-table row that the request's phase uses (its planes while the prompt runs, the kept ones
afterwards, boundary tracks always). So the pages of a slot are exactly rows(kind) x columns,
where the kind is (phase, loops), and no table is ever searched. The first columns of a slot may be
shared ones: blocks of the prefix cache, which are read and never written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlt_core.contract.errors import CapacityError
from rlt_core.kv.free_pages import FreePages
from rlt_core.kv.page_kinds import page_kinds
from rlt_core.kv.plan import SENTINEL_PAGE, KVPlan
from rlt_core.kv.prefix import Block, PrefixCache
from rlt_core.kv.shared_columns import SharedColumns
from rlt_core.kv.table_index import TableIndex

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_NONE: I64 = np.zeros(0, np.int64)
_NO_PAGES: I32 = np.zeros(0, np.int32)
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
        self._kind: I64 = np.zeros(num_slots, np.int64)
        self._shift = plan.page_size.bit_length() - 1  # page sizes are powers of two
        self._last_offset = plan.page_size - 1
        kinds = page_kinds(plan)
        self._index = TableIndex(kinds, num_slots, plan.table_rows, pages_per_row)
        self.cache = PrefixCache()
        self._free = FreePages(num_pages, self.cache, shuffle_seed)
        self.shared = SharedColumns(kinds, num_slots, plan.max_depth, self.cache)
        self._changed: list[I64] = []

    @property
    def num_free(self) -> int:
        """Pages that can be had: those that hold nothing, and cached ones that nobody uses."""
        return self._free.num_empty + self.cache.num_idle

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
        pages: I64 = self._index.num_rows[self._kind[slots]]
        return pages

    def admit(
        self,
        slot: int,
        loops: int,
        to_position: int = 0,
        *,
        has_prompt: bool = True,
        chain: Sequence[Block] = (),
    ) -> None:
        """A slot without pages begins a request of `loops` loops, with its prompt if it has one
        and with pages for `to_position` positions, which the caller knows to be there; the first
        columns are those of the blocks of `chain`."""
        assert not self.columns[slot], f"slot {slot} still holds pages"
        kind = loops - 1 if has_prompt else _DECODE * self.plan.max_depth + loops - 1
        self._kind[slot] = kind
        start = len(chain)
        columns = (to_position + self._last_offset) >> self._shift
        if columns < start:
            columns = start
        if not columns:
            return
        if columns > self.pages_per_row:
            raise self._too_wide(columns)
        if start:
            assert has_prompt, f"slot {slot} cannot share without a prompt"
            shared = self._index.flat(slot, kind, start)
            self._flat_table[shared] = self.shared.take(slot, chain)
            self._changed.append(shared)
        own = self._index.flat(slot, kind, columns, start)
        self._flat_table[own] = self._free.pop(len(own))
        self._changed.append(own)
        self.columns[slot], self.page_limit[slot] = columns, columns << self._shift

    def publish(self, slot: int, keys: Sequence[bytes], *, lasting: bool = True) -> None:
        """The columns behind the shared ones, whose positions are all written, are shared from
        now on and found by these keys. Of a block that is there already the slot takes the pages
        and gives back its own, which hold the same."""
        kind = self._kind.item(slot)
        loops = kind % self.plan.max_depth + 1
        for column, key in enumerate(keys, self.shared.count(slot)):
            flat = self._index.flat(slot, kind, column + 1, column)
            own = self._flat_table[flat]
            pages = self.shared.publish(slot, loops, key, own, lasting=lasting)
            if pages is not own:
                self._flat_table[flat] = pages
                self._changed.append(flat)
                self._free.push(own)

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
        start, stop = self.columns[slots], self.columns_needed(to_positions)
        if (most := int(stop[stop.argmax()])) > self.pages_per_row:
            raise self._too_wide(most)
        flat = self._index.entries(slots, start, stop, self._kind[slots])
        if len(flat) > self.num_free - leaving:
            return False
        self._flat_table[flat] = self._free.pop(len(flat))
        self.columns[slots], self.page_limit[slots] = stop, stop << self._shift
        self._changed.append(flat)
        return True

    def drop_planes(self, slot: int) -> None:
        """The prompt of this slot is done: free the planes that decoding does not use.
        Nothing happens to a slot that was told before."""
        depth, loops = self.plan.max_depth, int(self._kind[slot])
        if loops >= _DECODE * depth:
            return
        start, columns = self.shared.count(slot), int(self.columns[slot])
        self._kind[slot] = _DECODE * depth + loops
        offsets = self._index.offsets(_DROPPED * depth + loops, columns)
        if not len(offsets):
            return
        entries = self._by_slot[slot]
        if start:
            self._free.push(self.shared.keep(slot))
        self._free.push(entries[self._index.offsets(_DROPPED * depth + loops, columns, start)])
        entries[offsets] = SENTINEL_PAGE
        self._changed.append(self._index.flat(slot, _DROPPED * depth + loops, columns))

    def held(self, slot: int, columns: int, start: int = 0) -> I32:
        """The pages of a slot's columns from `start`, a table row after the other."""
        offsets = self._index.offsets(int(self._kind[slot]), columns, start)
        pages: I32 = self._by_slot[slot][offsets]
        return pages

    def free(self, slot: int, *, ended: bool = True) -> None:
        """Take all pages of this slot; its request ended or (not `ended`) was preempted. The
        entries are no changes: the device empties the tables of a slot that is cleared."""
        columns = self.columns.item(slot)
        if not columns:
            return
        kind, start, entries = self._kind.item(slot), self.shared.count(slot), self._by_slot[slot]
        offsets = self._index.offsets(kind, columns)
        own = self._index.offsets(kind, columns, start) if start else offsets
        self._free.push(entries[own])
        if start and len(freed := self.shared.leave(slot, ended=ended)):
            self._free.push(freed)
        entries[offsets] = SENTINEL_PAGE
        self.columns[slot] = self.page_limit[slot] = 0

    def take_changes(self) -> tuple[I64, I32]:
        """(flat table index, page) of every entry changed since the last call, but for those of
        slots that were freed. An entry changed twice comes twice, both with its value of now."""
        if not self._changed:
            return _NONE, _NO_PAGES
        flat = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed = []
        return flat, self._flat_table[flat]

    def take_freed(self) -> I32:
        """Pages freed since the last call, given again or not: int32 [N]."""
        return self._free.take_freed()

    def check(self) -> None:
        """Raise AssertionError unless every page is in exactly one place (a shared one in its
        block), slots hold what their blocks say and limits agree."""
        every = np.sort(np.concatenate((self._private(), self._free.empty, self.shared.owned())))
        wanted = np.arange(1, self.num_pages)
        assert np.array_equal(every, wanted), f"pages are lost or double: {every}"
        self.shared.check()
        limits = self.columns * self.plan.page_size
        assert np.array_equal(self.page_limit, limits), f"{self.page_limit} is not {limits}"
        slots = np.arange(len(self.columns))
        flat = self._index.entries(slots, np.zeros_like(slots), self.columns, self._kind)
        rightful = np.zeros(self._flat_table.size, np.bool_)
        rightful[flat] = True
        stray = np.flatnonzero(rightful != (self._flat_table != SENTINEL_PAGE))
        assert not len(stray), f"entries with a page too many or too few: {stray}"

    def _private(self) -> I32:
        """The pages that slots hold for themselves; AssertionError unless the others are those of
        their blocks."""
        entries = self._by_slot.copy()
        for slot, row in enumerate(entries):
            shared = self._index.offsets(int(self._kind[slot]), self.shared.count(slot))
            wanted = self.shared.pages(slot)
            assert np.array_equal(row[shared], wanted), f"slot {slot} left its blocks"
            row[shared] = SENTINEL_PAGE
        held: I32 = entries[entries != SENTINEL_PAGE]
        return held

    def _too_wide(self, columns: int) -> CapacityError:
        size = self.plan.page_size
        return CapacityError(
            f"{columns * size:,} positions asked for one request; its page table has "
            f"{self.pages_per_row * size:,}"
        )
