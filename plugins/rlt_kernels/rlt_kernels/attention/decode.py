"""Attention of rows that stand alone (decode rows): rope, the write of their own key and value,
and the walk over their pages in one kernel, split over programs where rows are few."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.attention.chunk import (
    CHUNK,
    finished_across,
    key_offsets,
    merge_across,
    mix_across,
    weigh_across,
)
from rlt_kernels.attention.parts import merge_when_last, store_part
from rlt_kernels.attention.turn import turned

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_ANY = (
    "page_row_ptr",
    "key_len_ptr",
    "hidden_ptr",
    "hidden_row_ptr",
    "pages_ptr",
    "pages_width",
    "hidden_width",
)


@triton.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=("hidden_width", "pages_width"))
def decode_kernel(
    q_ptr,  # [R, H, D], rows q_stride apart
    k_ptr,
    v_ptr,
    out_ptr,  # [R, H, D]
    pool_ptr,  # keys of this layer in page 0
    pages_ptr,  # int32 [tables, pages_width]
    page_row_ptr,  # int64 [R]: the row's table
    key_len_ptr,  # int64 [R]: 0 for a row that does nothing
    cos_ptr,
    sin_ptr,
    hidden_ptr,  # bool [., hidden_width]
    hidden_row_ptr,
    highest_ptr,  # partial results float32 [R, G, chunks, REP(, D)]
    total_ptr,
    mixed_ptr,
    arrived_ptr,  # int32 [R, G], zeros between launches
    page_stride,
    side_stride,
    position_stride,
    head_stride,
    pages_width,
    q_stride,
    k_stride,
    v_stride,
    hidden_width,
    cos_stride,
    scale,
    num_chunks,  # room of the partial results
    REP: tl.constexpr,  # query heads of a KV head
    LANES: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,  # programs of a row and KV head, each for a run of chunks
    RP: tl.constexpr,  # REP, padded as little as possible
    ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    STORE: tl.constexpr,
    HIDES: tl.constexpr,
    DOT: tl.constexpr,
    WHOLE: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    place = row * tl.num_programs(1) + group
    num_keys = tl.load(key_len_ptr + row)
    chunks = tl.cdiv(num_keys, CHUNK).to(tl.int32)
    each = tl.cdiv(chunks, SPLITS)
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, chunks)
    if first >= last:
        return
    position = num_keys - 1
    table_ptr = pages_ptr + tl.load(page_row_ptr + row) * pages_width
    keys_ptr = pool_ptr + group * head_stride
    hidden_row = hidden_ptr + tl.load(hidden_row_ptr + row) * hidden_width if HIDES else hidden_ptr
    d = tl.arange(0, DP)
    lane = tl.arange(0, LANES)
    inside = (lane < REP)[None, :] & (d < D)[:, None]
    cos_row, sin_row = cos_ptr + position * cos_stride, sin_ptr + position * cos_stride
    heads_ptr = q_ptr + row * q_stride + (group * REP + lane)[None, :] * D
    q = turned(heads_ptr, inside, d[:, None], cos_row, sin_row, ROPE, INTERLEAVED)
    own_ptr = k_ptr + row * k_stride + group * D
    k_own = turned(own_ptr, d < D, d, cos_row, sin_row, ROPE, INTERLEAVED)
    v_own = tl.load(v_ptr + row * v_stride + group * D + d, mask=d < D, other=0.0)
    if STORE:
        # Read back below as any other key.
        if last == chunks:
            page = tl.load(table_ptr + position // PAGE).to(tl.int64)
            to_ptr = keys_ptr + page * page_stride + (position % PAGE) * position_stride
            store_own(to_ptr, k_own, v_own, d, side_stride, D)
        tl.debug_barrier()

    highest = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    mixed = tl.zeros((DP, LANES), tl.float32)
    for chunk in range(first, last):
        c_highest, c_total, c_mixed = attend_keys(
            q, k_own, v_own, keys_ptr, table_ptr, hidden_row, chunk, position, d,
            page_stride, side_stride, position_stride, scale, D, PAGE, WHOLE, HIDES, STORE, DOT,
        )  # fmt: skip
        if SPLITS == 1:
            highest, total, mixed = merge_across(highest, total, mixed, c_highest, c_total, c_mixed)
        else:
            part = (place * num_chunks + chunk) * REP + lane
            parts_ptr = mixed_ptr + part[None, :] * D + d[:, None]
            store_part(
                highest_ptr + part, total_ptr + part, parts_ptr, c_highest, c_total, c_mixed,
                lane < REP, inside,
            )  # fmt: skip
    out_row = out_ptr + place * REP * D
    if SPLITS == 1:
        out = finished_across(total, mixed).to(q.dtype)
        tl.store(out_row + lane[None, :] * D + d[:, None], out, mask=inside)
    else:
        merge_when_last(
            arrived_ptr + place, tl.cdiv(chunks, each), highest_ptr, total_ptr, mixed_ptr, out_row,
            place * num_chunks, chunks, d, tl.arange(0, RP), REP, D,
        )  # fmt: skip


@triton.jit
def attend_keys(
    q, k_own, v_own, keys_ptr, table_ptr, hidden_row, chunk, position, d,
    page_stride, side_stride, position_stride, scale,
    D: tl.constexpr, PAGE: tl.constexpr, WHOLE: tl.constexpr,
    HIDES: tl.constexpr, STORE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One chunk: (highest score [M], sum of weights [M], weighted values [D, M])."""
    n = tl.arange(0, CHUNK) + chunk * CHUNK
    k, from_ptr, there, seen = load_keys(
        keys_ptr, table_ptr, hidden_row, n, position, d,
        page_stride, position_stride, D, PAGE, WHOLE, HIDES, STORE,
    )  # fmt: skip
    if not STORE:
        k = tl.where((n == position)[:, None], k_own[None, :], k)
    highest, weights = weigh_across(q, k, seen, scale, DOT)
    # After the keys, not beside them: both at once would fill the registers.
    tl.debug_barrier()
    v = tl.load(from_ptr + side_stride, mask=there, other=0.0)
    if not STORE:
        v = tl.where((n == position)[:, None], v_own[None, :], v)
    total, mixed = mix_across(weights, v, DOT)
    return highest, total, mixed


@triton.jit
def store_own(to_ptr, k_own, v_own, d, side_stride, D: tl.constexpr):
    """Write a row's own key and value to their page."""
    tl.store(to_ptr + d, k_own, mask=d < D)
    tl.store(to_ptr + side_stride + d, v_own, mask=d < D)


@triton.jit
def load_keys(
    keys_ptr,  # of this layer and head
    table_ptr,
    hidden_row,
    n,  # a chunk's positions
    position,  # the row's own
    d,
    page_stride,
    position_stride,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,
    HIDES: tl.constexpr,
    OWN: tl.constexpr,  # whether the row's own position lies in its page already
):
    """(keys [CHUNK, D], zeros where nothing is read; their addresses; which are read; seen
    [CHUNK])."""
    seen = n <= position
    at = key_offsets(table_ptr, n, seen, page_stride, position_stride, PAGE, WHOLE)
    if HIDES:
        seen = seen & (tl.load(hidden_row + n, mask=seen, other=1) == 0)
    held = seen
    if not OWN:
        held = seen & (n < position)
    # what is not seen may hold NaN, and 0 * NaN is NaN
    there = held[:, None] & (d < D)[None, :]
    from_ptr = keys_ptr + at[:, None] + d[None, :]
    return tl.load(from_ptr, mask=there, other=0.0), from_ptr, there, seen
