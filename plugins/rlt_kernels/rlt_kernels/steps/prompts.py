"""Prompt rows beside the decode rows of a tick: they enter, are settled, and those that end a
prompt go to the head. The decode rows come first in all arrays of a tick's rows."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

# Rows of arrays with an odd number of columns: nothing is compiled anew for how they lie.
_COLUMNS = ("places", "slots", "tokens", "positions", "prompt_depth", "exit_at", "rules", "finish")
_OUT = ("out_home", "out_slot", "out_position", "out_token", "out_depth", "out_plane", "out_rule",
        "out_page_row", "out_key_len", "out_live", "out_enters", "out_decided")  # fmt: skip
_FREE = ("R", "N", "S", "depths", "key_width", "max_depth", "table_rows", "first", "parts")


@triton.jit(do_not_specialize=_FREE, do_not_specialize_on_alignment=(*_COLUMNS, *_OUT))
def enter_prompts(
    rows,  # int64 [R]: the slots of the decode rows
    places, slots, tokens, positions, prompt_depth, rules,  # int64 [N]
    read_depth, key_depth, loops,
    write,  # int64 [2, depths, depths]
    out_home, out_slot, out_position, out_token, out_depth, out_plane, out_rule, out_page_row,
    out_key_len, out_live, out_enters,
    R, N, S, depths, key_width, max_depth, table_rows, first, parts,
    BLOCK: tl.constexpr, HIDES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """All of N prompt rows; home, slot and rule of the R decode rows in front of them too."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = index - R
    decode = index < R
    prompt = (row >= 0) & (row < N)
    own = tl.load(rows + index, mask=decode, other=0)
    slot = tl.load(slots + row, mask=prompt, other=0)
    home = tl.load(places + row, mask=prompt, other=0) + S + 1
    rule = tl.load(rules + row, mask=prompt, other=1)
    tl.store(out_home + index, tl.where(decode, own, home), mask=decode | prompt)
    tl.store(out_slot + index, tl.where(decode, own, slot), mask=decode | prompt)
    tl.store(out_rule + index, rule, mask=decode | prompt)

    at = tl.load(positions + row, mask=prompt, other=0)
    loop = tl.load(prompt_depth + row, mask=prompt, other=1)
    there = prompt & (slot != S)
    enters = there & (loop == 1)
    live = there
    if not FULL:  # a row that was read stands still while its cell goes on
        was = tl.load(read_depth + home, mask=there, other=0)
        live = there & (enters | (was == 0))
    last = tl.load(loops + slot, mask=prompt, other=0)
    plane = tl.load(write + (rule * depths + last) * depths + loop, mask=prompt, other=0)
    tl.store(read_depth + home, tl.zeros((BLOCK,), tl.int64), mask=enters)
    if HIDES:
        most = tl.zeros((BLOCK,), tl.int64) + max_depth
        tl.store(key_depth + slot * key_width + at, most, mask=enters)
    tl.store(out_position + index, at, mask=prompt)
    tl.store(out_token + index, tl.load(tokens + row, mask=prompt, other=0), mask=prompt)
    tl.store(out_depth + index, loop, mask=prompt)
    tl.store(out_plane + index, plane, mask=prompt)
    tl.store(out_page_row + index, slot * table_rows + first + plane * parts, mask=prompt)
    tl.store(out_live + index, live.to(tl.int8), mask=prompt)
    tl.store(out_enters + index, enters.to(tl.int8), mask=prompt)
    # the entry past the last row is 0
    tl.store(out_key_len + index, tl.where(live, at + 1, 0), mask=(row >= 0) & (row <= N))


@triton.jit(do_not_specialize=_FREE, do_not_specialize_on_alignment=(*_COLUMNS, *_OUT))
def settle_prompts(
    homes, slots, positions, row_depth, live,  # of all rows, as says and out_decided
    exit_at,  # int64 [N]
    says, read_depth, key_depth, loops, min_loops, max_loops, use_policy, out_decided,
    counts,  # int64 [5], as the decode rows left them
    R, N, key_width,
    BLOCK: tl.constexpr, SAYS: tl.constexpr, HIDES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < N
    index = R + row
    slot = tl.load(slots + index, mask=inside, other=0)
    home = tl.load(homes + index, mask=inside, other=0)
    loop = tl.load(row_depth + index, mask=inside, other=0)
    runs = inside & (tl.load(live + index, mask=inside, other=0) != 0)
    ends = tl.load(exit_at + row, mask=inside, other=1)
    leaves = loop >= tl.load(max_loops + slot, mask=inside, other=1)
    if SAYS:
        word = tl.load(says + index, mask=inside, other=0) != 0
        word = word & (tl.load(use_policy + slot, mask=inside, other=0) != 0)
        leaves = leaves | (word & (loop >= tl.load(min_loops + slot, mask=inside, other=1)))
    leaves = ((ends > 0) & (loop >= ends)) | ((ends <= 0) & leaves)
    leaves = leaves | (loop >= tl.load(loops + slot, mask=inside, other=1))
    decided = runs & (tl.load(read_depth + home, mask=inside, other=1) == 0) & leaves
    tl.store(read_depth + home, loop, mask=decided)
    if HIDES:
        if not FULL:
            at = tl.load(positions + index, mask=inside, other=0)
            tl.store(key_depth + slot * key_width + at, loop, mask=decided)
    tl.store(out_decided + index, decided.to(tl.int8), mask=inside)
    ran = tl.sum(runs.to(tl.int64), 0)
    if ran > 0:
        tl.atomic_add(counts, ran, sem="relaxed")
        tl.atomic_min(counts + 2, tl.min(tl.where(runs, loop, 1 << 30), 0), sem="relaxed")
        tl.atomic_max(counts + 3, tl.max(tl.where(runs, loop, 0), 0), sem="relaxed")


@triton.jit(do_not_specialize=("L", "F", "S"), do_not_specialize_on_alignment=(*_COLUMNS, *_OUT))
def end_prompts(
    places, slots, positions,  # int64 [N]
    finish,  # int64 [F]: rows of the prompt part
    read_depth, out_slot, out_home, out_position, out_depth, out_live, out_count,
    L, F, S,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """F rows behind L places, whose homes are their slots. out_count of the L places is there, if
    there is any of them."""
    index = tl.arange(0, BLOCK)
    row = index - L
    leaves = index < L
    ends = (row >= 0) & (row < F)
    own = tl.load(out_slot + index, mask=leaves, other=0)
    tl.store(out_home + index, own, mask=leaves)
    at = tl.load(finish + row, mask=ends, other=0)
    slot = tl.load(slots + at, mask=ends, other=S)
    home = tl.load(places + at, mask=ends, other=0) + S + 1
    there = ends & (slot != S)
    tl.store(out_home + index, home, mask=ends)
    tl.store(out_slot + index, slot, mask=ends)
    tl.store(out_position + index, tl.load(positions + at, mask=ends, other=0), mask=ends)
    tl.store(out_depth + index, tl.load(read_depth + home, mask=ends, other=0), mask=ends)
    tl.store(out_live + index, there.to(tl.int8), mask=ends)
    before = tl.load(out_count, mask=L > 0, other=0)
    tl.store(out_count, tl.maximum(before, tl.max(tl.where(there, index + 1, 0), 0)))
