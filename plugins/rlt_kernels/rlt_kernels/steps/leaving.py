"""Which rows leave, and what becomes of their slots: one program for all rows."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_kernels.steps.rows import LEAVING, READY, RUN

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

DONE = tl.constexpr(5)


@triton.jit
def places_of(rows, row, slot, phase, position, page_limit, left_at, loops, tick, R, S, min_leave,
              WAITS: tl.constexpr, BUSY: tl.constexpr):  # fmt: skip
    """(rows that may leave, how many go before each: the older first, then by row). WAITS: whether
    min_leave is more than one; BUSY: whether prompt rows run."""
    inside = row < R
    now = tl.load(phase + slot)
    since = tl.load(left_at + slot)
    waits = inside & (now == LEAVING)
    if WAITS:
        unparked = tl.load(position + slot) < tl.load(page_limit + slot)
        others = inside & ((now == RUN) | ((now == READY) & unparked))
        longest = tl.max(tl.where(waits, tl.load(tick) - since, 0), 0)
        patience = tl.max(tl.load(loops + slot), 0)
        enough = tl.sum(waits.to(tl.int32), 0) >= min_leave
        goes_on = (enough | (longest >= patience)).to(tl.int32)
        if not BUSY:
            goes_on = goes_on | (tl.max(others.to(tl.int32), 0) == 0).to(tl.int32)
        waits = waits & (row * 0 + goes_on != 0)  # all of them or none
    place = row * 0
    for start in range(0, R, 16):
        other = start + tl.arange(0, 16)
        there = other < R
        other_slot = tl.load(rows + other, mask=there, other=S)
        goes = there & (tl.load(phase + other_slot) == LEAVING)
        other_since = tl.load(left_at + other_slot)
        older = other_since[None, :] < since[:, None]
        same = (other_since[None, :] == since[:, None]) & (other[None, :] < row[:, None])
        place += tl.sum((goes[None, :] & (older | same)).to(tl.int32), 1)
    return waits, place


@triton.jit
def outcome(
    slot, at, word, wrong, num_out, max_tokens, max_position, stop_ids, STOPS: tl.constexpr
):
    """(finish codes of slots whose token at `at` is `word`, outputs made with it)."""
    made = tl.load(num_out + slot) + 1
    stop = tl.arange(0, STOPS)
    ids = tl.load(stop_ids + slot[:, None] * STOPS + stop[None, :])
    stops = tl.max((ids == word[:, None]).to(tl.int32), 1) > 0
    spent = made >= tl.load(max_tokens + slot)
    full = at + 1 >= tl.load(max_position + slot)
    finish = tl.where(stops, 1, tl.where(spent | full, 2, 0))
    return tl.where(wrong, 3, finish).to(tl.int64), made


@triton.jit
def tell(out, row, valid, L, slot, word, wrong, depth, rank, finish, logprob, counts):
    """The events of L rows, then the five counts: int64 [6 L + 5]."""
    inside = row < L
    tl.store(out + row, tl.where(valid, slot, -1), mask=inside)
    tl.store(out + L + row, tl.where(wrong, -1, word), mask=inside)
    tl.store(out + 2 * L + row, tl.load(depth + row, mask=inside, other=0), mask=inside)
    tl.store(out + 3 * L + row, tl.load(rank + row, mask=valid, other=0), mask=inside)
    tl.store(out + 4 * L + row, finish, mask=inside)
    bits = tl.load(logprob + row, mask=valid, other=0.0).to(tl.float64).to(tl.int64, bitcast=True)
    tl.store(out + 5 * L + row, bits, mask=inside)
    tail = tl.arange(0, 8)
    tl.store(out + 6 * L + tail, tl.load(counts + tail, mask=tail < 5, other=0), mask=tail < 5)


@triton.jit(do_not_specialize=("R", "S", "L", "min_leave"))
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
    WAITS: tl.constexpr,
    BUSY: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    slot = tl.load(rows + row, mask=row < R, other=S)
    waits, place = places_of(
        rows, row, slot, phase, position, page_limit, left_at, loops, tick, R, S, min_leave, WAITS,
        BUSY,
    )  # fmt: skip
    count = tl.minimum(tl.sum(waits.to(tl.int32), 0), L)
    taken = waits & (place < L)
    tl.store(out_slot + place, slot, mask=taken)
    tl.store(out_position + place, tl.load(position + slot), mask=taken)
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
    finish, made = outcome(
        slot, at, word, wrong, num_out, max_tokens, max_position, stop_ids, STOPS
    )
    ready = tl.full((BLOCK,), READY, tl.int64)
    tl.store(phase + slot, tl.where(finish == 0, ready, DONE), mask=valid)
    tl.store(slot_token + slot, word, mask=valid)
    tl.store(slot_position + slot, at, mask=valid)
    tl.store(num_out + slot, made, mask=valid)
    tell(out, row, valid, L, slot, word, wrong, row_depth, rank, finish, logprob, counts)
