"""Which rows of slots with lanes go to the head, what becomes of those behind a front that left,
and what is guessed of the newest: one program for all slots."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_core.contract.lane_steps import TRUST_NEWS, TRUST_REST
from rlt_kernels.steps.leaving import DONE, outcome, places_of, tell
from rlt_kernels.steps.rows import LEAVING, READY, RUN

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

NEWS, REST = tl.constexpr(TRUST_NEWS), tl.constexpr(TRUST_REST)


@triton.jit(do_not_specialize=("N", "S", "L", "base", "min_leave", "draft"))
def choose_rows(
    listed,  # int64 [N]: slots
    tick,
    least,
    phase,
    position,
    page_limit,
    left_at,
    num_out,
    max_tokens,
    max_position,
    loops,
    read_depth,
    lane_depth,
    lane_guess,
    lane_ahead,
    trust,
    unguessed,
    out_slot,  # [L + N], or [L] without guesses
    out_home,
    out_position,
    out_depth,
    out_live,
    out_count,
    N,
    S,
    L,
    base,
    min_leave,
    draft,
    NUM: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,  # at least L; 0: nothing leaves
    WAITS: tl.constexpr,
    GUESSES: tl.constexpr,
    SPARES: tl.constexpr,  # whether there are slots that nothing is guessed for
):
    row = tl.arange(0, BLOCK)
    inside = row < N
    slot = tl.load(listed + row, mask=inside, other=S)
    front = tl.load(position + slot)
    at_home = base + slot * NUM
    count = tl.zeros((), tl.int32)
    taken = inside & (row < 0)
    if PLACES > 0:
        waits, place = places_of(
            listed, row, slot, phase, position, page_limit, left_at, loops, tick, N, S, min_leave,
            WAITS, False,
        )  # fmt: skip
        count = tl.minimum(tl.sum(waits.to(tl.int32), 0), L)
        taken = waits & (place < L)
        home = at_home + front % NUM
        tl.store(out_slot + place, slot, mask=taken)
        tl.store(out_home + place, home, mask=taken)
        tl.store(out_position + place, front, mask=taken)
        tl.store(out_depth + place, tl.load(read_depth + home), mask=taken)
        free = tl.arange(0, PLACES)
        empty = (free >= count) & (free < L)
        none = tl.zeros((PLACES,), tl.int64)
        tl.store(out_slot + free, none + S, mask=empty)
        tl.store(out_home + free, none + S, mask=empty)
        tl.store(out_position + free, none, mask=empty)
        tl.store(out_depth + free, none, mask=empty)
        tl.store(out_live + free, (free < count).to(tl.int8), mask=free < L)
    if GUESSES:
        now = tl.load(phase + slot)
        ahead = tl.load(lane_ahead + slot)
        newest = at_home + (front + tl.maximum(ahead - 1, 0)) % NUM
        depth = tl.load(lane_depth + newest)
        # A front that leaves now: as if its token were the one that entered, or nothing follows.
        behind = tl.where(taken, ahead - 1, ahead)
        often = tl.load(trust + slot)
        often = tl.where(taken, often + NEWS * (1.0 - often), often)
        wants = inside & ((now == RUN) | (now == LEAVING)) & (behind > 0) & (behind < NUM)
        wants = wants & (tl.load(num_out + slot) + ahead < tl.load(max_tokens + slot))
        wants = wants & (front + ahead + 1 < tl.load(max_position + slot))
        wants = wants & ((depth >= draft) | (tl.load(read_depth + newest) > 0))
        wants = wants & (tl.load(lane_guess + newest) < 0)
        wants = wants & (often * 1000.0 >= tl.load(least).to(tl.float32))
        if SPARES:
            wants = wants & (tl.load(unguessed + slot) == 0)
        to = L + row
        tl.store(out_slot + to, tl.where(wants, slot, S), mask=inside)
        tl.store(out_home + to, tl.where(wants, newest, S), mask=inside)
        tl.store(out_position + to, tl.where(wants, front + ahead - 1, 0), mask=inside)
        tl.store(out_depth + to, tl.where(wants, depth, 0), mask=inside)
        tl.store(out_live + to, wants.to(tl.int8), mask=inside)
        count = tl.maximum(count, tl.max(tl.where(wants, to + 1, 0), 0))
    tl.store(out_count, count)


@triton.jit(do_not_specialize=("L", "S", "base"))
def advance_lanes(
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
    loops,
    lane_token,
    lane_position,
    lane_depth,
    lane_ahead,
    trust,
    out,  # int64 [6 L + 5]
    out_drafts,  # int64 [2, L]
    L,
    S,
    base,
    NUM: tl.constexpr,
    LANES: tl.constexpr,
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
    ahead = tl.load(lane_ahead + slot)
    checked = valid & (ahead > 1)
    entered = tl.load(lane_token + base + slot * NUM + at % NUM)
    holds = checked & (entered == word) & (finish == 0)
    lane = tl.arange(0, LANES)[None, :]
    homes = base + slot[:, None] * NUM + lane
    there = valid[:, None] & (lane < NUM)
    offset = tl.load(lane_position + homes, mask=there, other=0) - at[:, None]
    behind = there & (offset >= 0) & (offset + 1 < ahead[:, None])
    taken = tl.where(behind, tl.load(lane_depth + homes, mask=there, other=0), 0)
    lost = tl.where(holds, 0, tl.sum(taken, 1))
    often = tl.load(trust + slot)
    aim = tl.where(checked, holds.to(tl.float32), 1.0)
    often = often + tl.where(checked, NEWS, REST) * (aim - often)
    goes_on = tl.where(holds, RUN, READY)
    tl.debug_barrier()  # all that is stored below has been read
    tl.store(phase + slot, tl.where(finish == 0, goes_on, DONE).to(tl.int64), mask=valid)
    tl.store(lane_ahead + slot, tl.where(holds, ahead - 1, 0), mask=valid)
    tl.store(trust + slot, often, mask=valid)
    tl.store(slot_token + slot, word, mask=valid)
    tl.store(slot_position + slot, at, mask=valid)
    tl.store(num_out + slot, made, mask=valid)
    tl.store(out_drafts + row, tl.where(checked, holds.to(tl.int64), -1), mask=inside)
    tl.store(out_drafts + L + row, lost, mask=inside)
    tell(out, row, valid, L, slot, word, wrong, row_depth, rank, finish, logprob, counts)
    # Rows that were dropped left nothing: outputs are counted, not decisions.
    depth = tl.load(row_depth + row, mask=valid, other=0)
    early = valid & (depth < tl.load(loops + slot))
    tl.debug_barrier()  # behind `tell`
    tl.store(out + 6 * L + 4, tl.sum(early.to(tl.int64), 0))


@triton.jit(do_not_specialize=("N", "S"))
def note_rows(
    slots,
    homes,
    token,
    bad,
    phase,
    stop_ids,
    lane_guess,
    N,
    S,
    BLOCK: tl.constexpr,
    STOPS: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    inside = row < N
    slot = tl.load(slots + row, mask=inside, other=S)
    now = tl.load(phase + slot)
    wanted = inside & (slot != S) & ((now == RUN) | (now == LEAVING))
    word = tl.load(token + row, mask=wanted, other=0)
    stop = tl.arange(0, STOPS)
    ids = tl.load(stop_ids + slot[:, None] * STOPS + stop[None, :])
    stops = tl.max((ids == word[:, None]).to(tl.int32), 1) > 0
    none = stops | (tl.load(bad + row, mask=wanted, other=0) != 0)
    home = tl.load(homes + row, mask=wanted, other=0)
    tl.store(lane_guess + home, tl.where(none, -1, word), mask=wanted)
