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


@triton.jit(do_not_specialize=("R", "S", "L"))
def leave_rows(
    rows,
    tick,
    phase,
    position,
    page_limit,
    left_at,
    read_depth,
    loops,
    out_slot,
    out_position,
    out_depth,
    out_live,
    out_count,
    R,
    S,
    L,
    min_leave,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
    WAITS: tl.constexpr,  # whether min_leave is more than one
):
    row = tl.arange(0, BLOCK)
    inside = row < R
    slot = tl.load(rows + row, mask=inside, other=S)
    now = tl.load(phase + slot)
    at = tl.load(position + slot)
    since = tl.load(left_at + slot)
    waits = inside & (now == LEAVING)
    if WAITS:
        unparked = at < tl.load(page_limit + slot)
        others = inside & ((now == RUN) | ((now == READY) & unparked))
        longest = tl.max(tl.where(waits, tl.load(tick) - since, 0), 0)
        patience = tl.max(tl.load(loops + slot), 0)
        enough = tl.sum(waits.to(tl.int32), 0) >= min_leave
        idle = tl.max(others.to(tl.int32), 0) == 0
        goes_on = (enough | idle | (longest >= patience)).to(tl.int32)
        waits = waits & (row * 0 + goes_on != 0)  # all of them or none
    # A row's place: how many go before it, the older first, then by row.
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, R, 16):
        other = start + tl.arange(0, 16)
        there = other < R
        other_slot = tl.load(rows + other, mask=there, other=S)
        goes = there & (tl.load(phase + other_slot) == LEAVING)
        other_since = tl.load(left_at + other_slot)
        older = other_since[None, :] < since[:, None]
        same = (other_since[None, :] == since[:, None]) & (other[None, :] < row[:, None])
        place += tl.sum((goes[None, :] & (older | same)).to(tl.int32), 1)
    count = tl.minimum(tl.sum(waits.to(tl.int32), 0), L)
    taken = waits & (place < L)
    tl.store(out_slot + place, slot, mask=taken)
    tl.store(out_position + place, at, mask=taken)
    tl.store(out_depth + place, tl.load(read_depth + slot), mask=taken)
    free = tl.arange(0, PLACES)
    empty = (free >= count) & (free < L)
    tl.store(out_slot + free, tl.zeros((PLACES,), tl.int64) + S, mask=empty)
    tl.store(out_position + free, tl.zeros((PLACES,), tl.int64), mask=empty)
    tl.store(out_depth + free, tl.zeros((PLACES,), tl.int64), mask=empty)
    tl.store(out_live + free, (free < count).to(tl.int8), mask=free < L)
    tl.store(out_count, count)


@triton.jit(do_not_specialize=("L", "S"))
def advance_rows(
    slots,  # of the leaving rows, as position and depth
    position,
    row_depth,
    token,
    logprob,
    rank,
    bad,
    counts,
    phase,
    slot_token,
    slot_position,
    num_out,
    max_tokens,
    max_position,
    stop_ids,
    out,  # int64 [6 L + 5]
    L,
    S,
    BLOCK: tl.constexpr,
    STOPS: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    inside = row < L
    slot = tl.load(slots + row, mask=inside, other=S)
    valid = inside & (slot != S)
    word = tl.load(token + row, mask=valid, other=0)
    wrong = valid & (tl.load(bad + row, mask=valid, other=0) != 0)
    at = tl.load(position + row, mask=inside, other=0) + 1
    made = tl.load(num_out + slot) + 1
    stop = tl.arange(0, STOPS)
    ids = tl.load(stop_ids + slot[:, None] * STOPS + stop[None, :])
    stops = tl.max((ids == word[:, None]).to(tl.int32), 1) > 0
    spent = made >= tl.load(max_tokens + slot)
    full = at + 1 >= tl.load(max_position + slot)
    finish = tl.where(stops, 1, tl.where(spent | full, 2, 0))
    finish = tl.where(wrong, 3, finish).to(tl.int64)
    ready = tl.full((BLOCK,), READY, tl.int64)
    tl.store(phase + slot, tl.where(finish == 0, ready, 5), mask=valid)
    tl.store(slot_token + slot, word, mask=valid)
    tl.store(slot_position + slot, at, mask=valid)
    tl.store(num_out + slot, made, mask=valid)
    tl.store(out + row, tl.where(valid, slot, -1), mask=inside)
    tl.store(out + L + row, tl.where(wrong, -1, word), mask=inside)
    tl.store(out + 2 * L + row, tl.load(row_depth + row, mask=inside, other=0), mask=inside)
    tl.store(out + 3 * L + row, tl.load(rank + row, mask=valid, other=0), mask=inside)
    tl.store(out + 4 * L + row, finish, mask=inside)
    bits = tl.load(logprob + row, mask=valid, other=0.0).to(tl.float64).to(tl.int64, bitcast=True)
    tl.store(out + 5 * L + row, bits, mask=inside)
    tail = tl.arange(0, 8)
    tl.store(out + 6 * L + tail, tl.load(counts + tail, mask=tail < 5, other=0), mask=tail < 5)
