"""Rows enter, or go one loop deeper, and are settled after it: one program for all rows."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

READY = tl.constexpr(2)
RUN = tl.constexpr(3)
LEAVING = tl.constexpr(4)
_FREE = ("R", "S", "depths", "key_width", "table_rows", "first", "parts")


@triton.jit(do_not_specialize=("S", "N"), do_not_specialize_on_alignment=("limits", "at", "page"))
def apply_changes(page_limit, tables, limits, at, page, S, N, BLOCK: tl.constexpr):
    """page_limit of S slots, and N entries of the flat tables."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    limit = tl.load(limits + index, mask=index < S, other=0)
    tl.store(page_limit + index, limit, mask=index < S)
    entry = tl.load(at + index, mask=index < N, other=0)
    value = tl.load(page + index, mask=index < N, other=0)
    tl.store(tables + entry, value.to(tl.int32), mask=index < N)


@triton.jit(do_not_specialize=_FREE)
def enter_rows(
    rows,  # int64 [R]: slots
    phase,
    token,
    position,
    depth,
    page_limit,
    read_depth,
    key_depth,
    loops,
    write,  # int64 [2, depths, depths]
    out_position,
    out_token,
    out_depth,
    out_plane,
    out_live,
    out_enters,
    out_key_len,
    out_page_row,
    out_parked,
    R,
    S,
    depths,
    key_width,
    max_depth,
    table_rows,
    first,
    parts,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,  # at least S, for the cohort's look at all slots; 0: none
    HIDES: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    inside = row < R
    slot = tl.load(rows + row, mask=inside, other=S)
    now = tl.load(phase + slot)
    at = tl.load(position + slot)
    ready = inside & (now == READY)
    parked = ready & (at >= tl.load(page_limit + slot))
    enters = ready & (at < tl.load(page_limit + slot))
    if ALL > 0:
        every = tl.arange(0, ALL)
        others = tl.load(phase + every, mask=every < S, other=0)
        busy = tl.max(((others == RUN) | (others == LEAVING)).to(tl.int32), 0)
        enters = enters & (row * 0 + busy == 0)  # all rows or none
    runs = inside & (enters | (now == RUN))
    before = tl.where(enters, 0, tl.load(depth + slot))
    loop = tl.where(runs, before + 1, 1)
    plane = tl.load(write + (depths + tl.load(loops + slot)) * depths + loop)
    word = tl.load(token + slot)
    tl.debug_barrier()  # all of phase has been read
    tl.store(phase + slot, tl.full((BLOCK,), RUN, tl.int64), mask=enters)
    tl.store(depth + slot, tl.zeros((BLOCK,), tl.int64), mask=enters)
    tl.store(read_depth + slot, tl.zeros((BLOCK,), tl.int64), mask=enters)
    if HIDES:
        most = tl.zeros((BLOCK,), tl.int64) + max_depth
        tl.store(key_depth + slot * key_width + at, most, mask=enters)
    tl.store(out_position + row, at, mask=inside)
    tl.store(out_token + row, word, mask=inside)
    tl.store(out_depth + row, loop, mask=inside)
    tl.store(out_plane + row, plane, mask=inside)
    tl.store(out_page_row + row, slot * table_rows + first + plane * parts, mask=inside)
    tl.store(out_live + row, runs.to(tl.int8), mask=inside)
    tl.store(out_enters + row, enters.to(tl.int8), mask=inside)
    # the entry past the last row is 0
    tl.store(out_key_len + row, tl.where(runs, at + 1, 0), mask=inside)
    tl.store(out_key_len + R, tl.zeros((), tl.int64))
    tl.store(out_parked, tl.sum(parked.to(tl.int64), 0))


@triton.jit(do_not_specialize=("R", "S", "key_width"))
def settle_rows(
    rows,
    position,  # of the rows, as depth and live
    row_depth,
    live,
    says,
    tick,
    parked,
    phase,
    depth,
    left_at,
    read_depth,
    key_depth,
    loops,
    min_loops,
    max_loops,
    use_policy,
    out_decided,
    out_counts,
    R,
    S,
    key_width,
    BLOCK: tl.constexpr,
    SAYS: tl.constexpr,
    HIDES: tl.constexpr,
    FULL: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    inside = row < R
    slot = tl.load(rows + row, mask=inside, other=S)
    loop = tl.load(row_depth + row, mask=inside, other=1)
    runs = inside & (tl.load(live + row, mask=inside, other=0) != 0)
    last = tl.load(loops + slot)
    leaves = (loop >= tl.load(max_loops + slot)) | (loop >= last)
    if SAYS:
        word = tl.load(says + row, mask=inside, other=0) != 0
        word = word & (tl.load(use_policy + slot) != 0)
        leaves = leaves | (word & (loop >= tl.load(min_loops + slot)))
    decided = runs & (tl.load(read_depth + slot) == 0) & leaves
    done = decided
    if FULL:
        done = runs & (loop >= last)
    tl.store(read_depth + slot, loop, mask=decided)
    tl.store(depth + slot, loop, mask=runs)
    tl.store(phase + slot, tl.full((BLOCK,), LEAVING, tl.int64), mask=done)
    tl.store(left_at + slot, tl.zeros((BLOCK,), tl.int64) + tl.load(tick), mask=done)
    if HIDES:
        if not FULL:
            at = tl.load(position + row, mask=inside, other=0)
            tl.store(key_depth + slot * key_width + at, loop, mask=decided)
    tl.store(out_decided + row, decided.to(tl.int8), mask=inside)
    early = decided & (loop < last)
    tl.store(out_counts, tl.sum(runs.to(tl.int64), 0))
    tl.store(out_counts + 1, tl.load(parked))
    tl.store(out_counts + 2, tl.min(tl.where(runs, loop, 1 << 30), 0))
    tl.store(out_counts + 3, tl.max(tl.where(runs, loop, 0), 0))
    tl.store(out_counts + 4, tl.sum(early.to(tl.int64), 0))
