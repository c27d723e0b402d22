"""Rows of several lanes a slot enter, or go one loop deeper, and are settled after it. One program
for all slots, some of them at a time, with their lanes beside each other."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_kernels.steps.rows import LEAVING, READY, RUN

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit
def lanes_of(slot, front, base, NUM: tl.constexpr, FAN: tl.constexpr, LANES: tl.constexpr):
    """(lanes that the tick holds of each slot, all or the front's; their homes): [slots, LANES]."""
    lane = slot[:, None] * 0 + tl.arange(0, LANES)[None, :]
    if FAN < NUM:
        lane = lane * 0 + (front % NUM)[:, None]
    return lane, base + slot[:, None] * NUM + lane


@triton.jit
def newcomers(slot, there, now, front, ahead, token, page_limit, num_out, max_tokens, max_position,
              lane_guess, base, NUM: tl.constexpr, FAN: tl.constexpr):  # fmt: skip
    """(slots that a row enters, those whose row has no page, its position, its token)."""
    ready = there & (now == READY)
    running = there & ((now == RUN) | (now == LEAVING))
    newest = base + slot * NUM + (front + tl.maximum(ahead - 1, 0)) % NUM
    guess = tl.load(lane_guess + newest)
    follows = running & (guess >= 0) & (ahead > 0) & (ahead < NUM) & (FAN == NUM)
    follows = follows & (tl.load(num_out + slot) + ahead < tl.load(max_tokens + slot))
    follows = follows & (front + ahead + 1 < tl.load(max_position + slot))
    at = front + tl.where(ready, 0, ahead)
    limit = tl.load(page_limit + slot)
    word = tl.where(ready, tl.load(token + slot), tl.maximum(guess, 0))
    comes = ready | follows
    return comes & (at < limit), comes & (at >= limit), at, word


@triton.jit
def goes_on(offset, loop, was_read, flight, last, flies, here, FULL: tl.constexpr):
    """Lanes whose rows take a loop: those in flight that were not read; in mode full, those and
    what was read, up to full depth, while the slot is here at all."""
    live = (offset >= 0) & (offset < flight) & flies
    if FULL:
        live = (live | ((offset < 0) & (loop > 0) & here)) & (loop < last)
    else:
        live = live & (was_read == 0)
    return live


@triton.jit
def give(out_home, out_slot, out_position, out_token, out_depth, out_plane, out_page_row, out_live,
         out_enters, out_key_len, row, inside, home, slot, position, word, loop, plane, live, comes,
         table_rows, first, parts):  # fmt: skip
    """The rows' own entries of RunningRows."""
    tl.store(out_home + row, home, mask=inside)
    tl.store(out_slot + row, slot, mask=inside)
    tl.store(out_position + row, position, mask=inside)
    tl.store(out_token + row, word, mask=inside)
    tl.store(out_depth + row, loop, mask=inside)
    tl.store(out_plane + row, plane, mask=inside)
    tl.store(out_page_row + row, slot * table_rows + first + plane * parts, mask=inside)
    tl.store(out_live + row, live.to(tl.int8), mask=inside)
    tl.store(out_enters + row, comes.to(tl.int8), mask=inside)
    tl.store(out_key_len + row, tl.where(live, position + 1, 0), mask=inside)


@triton.jit(
    do_not_specialize=("N", "S", "base", "depths", "key_width", "table_rows", "first", "parts")
)
def enter_lanes(
    listed,  # int64 [N]: slots
    phase, token, position, page_limit, num_out, max_tokens, max_position, loops, read_depth,
    key_depth,
    write,  # int64 [2, depths, depths]
    lane_token, lane_position, lane_depth, lane_guess, lane_ahead,
    out_home, out_slot, out_position, out_token, out_depth, out_plane, out_live, out_enters,
    out_key_len, out_page_row, out_parked,
    N, S, base, depths, key_width, max_depth, table_rows, first, parts,
    NUM: tl.constexpr, FAN: tl.constexpr,
    LANES: tl.constexpr,  # at least FAN
    SLOTS: tl.constexpr, HIDES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    waiting = tl.zeros((), tl.int64)
    for start in range(0, N, SLOTS):
        index = start + tl.arange(0, SLOTS)
        there = index < N
        slot = tl.load(listed + index, mask=there, other=S)
        now = tl.load(phase + slot)
        front = tl.load(position + slot)
        ahead = tl.load(lane_ahead + slot)
        ready = there & (now == READY)
        running = there & ((now == RUN) | (now == LEAVING))
        enters, waits, at, word = newcomers(
            slot, there, now, front, ahead, token, page_limit, num_out, max_tokens, max_position,
            lane_guess, base, NUM, FAN,
        )  # fmt: skip
        waiting += tl.sum(waits.to(tl.int64), 0)
        flight = ahead + enters.to(tl.int64)
        flies = running | (ready & enters)
        last = tl.load(loops + slot)

        lane, home = lanes_of(slot, front, base, NUM, FAN, LANES)
        inside = there[:, None] & (tl.arange(0, LANES)[None, :] < FAN)
        comes = inside & enters[:, None] & (lane == (at % NUM)[:, None])
        stands = tl.load(lane_position + home, mask=inside, other=0)
        stands = tl.where(comes, at[:, None], stands)
        loop = tl.where(comes, 0, tl.load(lane_depth + home, mask=inside, other=0))
        words = tl.load(lane_token + home, mask=inside, other=0)
        words = tl.where(comes, word[:, None], words)
        offset = stands - front[:, None]
        was_read = tl.load(read_depth + home, mask=inside & ~comes, other=0) != 0
        live = inside & goes_on(
            offset, loop, was_read, flight[:, None], last[:, None], flies[:, None],
            (running | ready)[:, None], FULL,
        )  # fmt: skip
        # Rows that stand still are indexed too: old positions may be another request's.
        stands = tl.where(live, stands, front[:, None])
        loop = tl.where(live, loop + 1, 1)
        plane = tl.load(write + (depths + last[:, None]) * depths + loop)

        tl.debug_barrier()  # all that is stored below has been read
        tl.store(phase + slot, tl.full((SLOTS,), RUN, tl.int64), mask=ready & enters)
        tl.store(lane_ahead + slot, flight, mask=enters)
        if HIDES:
            most = tl.zeros((SLOTS,), tl.int64) + max_depth
            tl.store(key_depth + slot * key_width + at, most, mask=enters)
        tl.store(lane_token + home, words, mask=comes)
        tl.store(lane_position + home, stands, mask=comes)
        tl.store(lane_depth + home, loop * 0, mask=comes)
        tl.store(lane_guess + home, loop * 0 - 1, mask=comes)
        tl.store(read_depth + home, loop * 0, mask=comes)
        give(
            out_home, out_slot, out_position, out_token, out_depth, out_plane, out_page_row,
            out_live, out_enters, out_key_len, index[:, None] * FAN + tl.arange(0, LANES)[None, :],
            inside, home, slot[:, None] + lane * 0, stands, words, loop, plane, live, comes,
            table_rows, first, parts,
        )  # fmt: skip
    # the entry past the last row is 0
    tl.store(out_key_len + N * FAN, tl.zeros((), tl.int64))
    tl.store(out_parked, waiting)


@triton.jit(do_not_specialize=("N", "S", "base", "key_width"))
def settle_lanes(
    listed,
    row_position,
    row_depth,
    live,
    says,
    tick,
    parked,
    phase,
    position,
    left_at,
    read_depth,
    key_depth,
    loops,
    min_loops,
    max_loops,
    use_policy,
    lane_depth,
    out_decided,
    out_counts,
    N,
    S,
    base,
    key_width,
    NUM: tl.constexpr,
    FAN: tl.constexpr,
    LANES: tl.constexpr,
    SLOTS: tl.constexpr,
    SAYS: tl.constexpr,
    HIDES: tl.constexpr,
    FULL: tl.constexpr,
):
    ran, early = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    low, high = tl.zeros((), tl.int64) + (1 << 30), tl.zeros((), tl.int64)
    for start in range(0, N, SLOTS):
        index = start + tl.arange(0, SLOTS)
        there = index < N
        slot = tl.load(listed + index, mask=there, other=S)
        front = tl.load(position + slot)
        now = tl.load(phase + slot)
        lane, home = lanes_of(slot, front, base, NUM, FAN, LANES)
        inside = there[:, None] & (tl.arange(0, LANES)[None, :] < FAN)
        row = index[:, None] * FAN + tl.arange(0, LANES)[None, :]
        loop = tl.load(row_depth + row, mask=inside, other=1)
        runs = inside & (tl.load(live + row, mask=inside, other=0) != 0)
        last = tl.load(loops + slot)[:, None]
        leaves = (loop >= tl.load(max_loops + slot)[:, None]) | (loop >= last)
        if SAYS:
            word = tl.load(says + row, mask=inside, other=0) != 0
            word = word & (tl.load(use_policy + slot) != 0)[:, None]
            leaves = leaves | (word & (loop >= tl.load(min_loops + slot)[:, None]))
        was_read = tl.load(read_depth + home, mask=inside, other=0)
        decided = runs & (was_read == 0) & leaves
        front_read = inside & (lane == (front % NUM)[:, None]) & (decided | (was_read != 0))
        left = there & (now == RUN) & (tl.max(front_read.to(tl.int32), 1) > 0)
        tl.debug_barrier()  # read_depth and phase have been read
        tl.store(read_depth + home, loop, mask=decided)
        tl.store(lane_depth + home, loop, mask=runs)
        tl.store(phase + slot, tl.full((SLOTS,), LEAVING, tl.int64), mask=left)
        tl.store(left_at + slot, tl.zeros((SLOTS,), tl.int64) + tl.load(tick), mask=left)
        if HIDES:
            if not FULL:
                at = tl.load(row_position + row, mask=inside, other=0)
                tl.store(key_depth + slot[:, None] * key_width + at, loop, mask=decided)
        tl.store(out_decided + row, decided.to(tl.int8), mask=inside)
        ran += tl.sum(tl.sum(runs.to(tl.int64), 1), 0)
        early += tl.sum(tl.sum((decided & (loop < last)).to(tl.int64), 1), 0)
        low = tl.minimum(low, tl.min(tl.min(tl.where(runs, loop, 1 << 30), 1), 0))
        high = tl.maximum(high, tl.max(tl.max(tl.where(runs, loop, 0), 1), 0))
    tl.store(out_counts, ran)
    tl.store(out_counts + 1, tl.load(parked))
    tl.store(out_counts + 2, low)
    tl.store(out_counts + 3, high)
    tl.store(out_counts + 4, early)
