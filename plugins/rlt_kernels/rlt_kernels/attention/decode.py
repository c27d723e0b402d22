"""Attention of rows that stand alone (decode rows): rope, the write of their own key and value,
and the walk over their pages in one kernel, split over programs where rows are few."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.attention.chunk import (
    CHUNK,
    attend_chunk_across,
    finished_across,
    key_offsets,
    merge_across,
)
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
        gdc_launch_dependents()
    group = tl.program_id(0)
    groups = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    num_keys = tl.load(key_len_ptr + row)
    own_row = tl.load(page_row_ptr + row)
    chunks = tl.cdiv(num_keys, CHUNK).to(tl.int32)
    each = tl.cdiv(chunks, SPLITS)
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, chunks)
    position = num_keys - 1
    table_ptr = pages_ptr + own_row * pages_width
    keys_ptr = pool_ptr + group * D
    d = tl.arange(0, DP)
    lane = tl.arange(0, LANES)
    hidden_row = hidden_ptr
    if HIDES:
        hidden_row += tl.load(hidden_row_ptr + row) * hidden_width
    # Tables, lengths and earlier positions are older than the kernel in front; q, k, v are not.
    k, v, seen = load_keys(
        keys_ptr, table_ptr, hidden_row, first, position, last, d,
        page_stride, side_stride, position_stride, D, PAGE, WHOLE, HIDES,
    )  # fmt: skip
    if PDL:
        gdc_wait()
    if first >= last:
        return

    inside = (lane < REP)[None, :] & (d < D)[:, None]
    cos_row = cos_ptr + position * cos_stride
    sin_row = sin_ptr + position * cos_stride
    heads_ptr = q_ptr + row * q_stride + (group * REP + lane)[None, :] * D
    q = turned(heads_ptr, inside, d[:, None], cos_row, sin_row, ROPE, INTERLEAVED)
    k_own = turned(
        k_ptr + row * k_stride + group * D, d < D, d, cos_row, sin_row, ROPE, INTERLEAVED
    )
    v_own = tl.load(v_ptr + row * v_stride + group * D + d, mask=d < D, other=0.0)
    if STORE:
        if last == chunks:
            page = tl.load(table_ptr + position // PAGE).to(tl.int64)
            own_ptr = keys_ptr + page * page_stride + (position % PAGE) * position_stride + d
            tl.store(own_ptr, k_own, mask=d < D)
            tl.store(own_ptr + side_stride, v_own, mask=d < D)

    highest = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    mixed = tl.zeros((DP, LANES), tl.float32)
    place = (row * groups + group) * num_chunks
    for chunk in range(first, last):
        if chunk > first:
            k, v, seen = load_keys(
                keys_ptr, table_ptr, hidden_row, chunk, position, last, d,
                page_stride, side_stride, position_stride, D, PAGE, WHOLE, HIDES,
            )  # fmt: skip
        own = (chunk * CHUNK + tl.arange(0, CHUNK) == position)[:, None]
        k = tl.where(own, k_own[None, :], k)
        v = tl.where(own, v_own[None, :], v)
        c_highest, c_total, c_mixed = attend_chunk_across(q, k, v, seen, scale, DOT)
        if SPLITS == 1:
            highest, total, mixed = merge_across(highest, total, mixed, c_highest, c_total, c_mixed)
        else:
            part = (place + chunk) * REP + lane
            tl.store(highest_ptr + part, c_highest, mask=lane < REP)
            tl.store(total_ptr + part, c_total, mask=lane < REP)
            tl.store(mixed_ptr + part[None, :] * D + d[:, None], c_mixed, mask=inside)
    if SPLITS == 1:
        out = finished_across(total, mixed).to(q.dtype)
        out_row = out_ptr + (row * groups * REP + group * REP + lane)[None, :] * D + d[:, None]
        tl.store(out_row, out, mask=inside)
    else:
        # The last program to arrive merges all chunks, in their order.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrived_ptr + row * groups + group, 1, sem="acq_rel")
        if arrived != tl.cdiv(chunks, each) - 1:
            return
        tl.store(arrived_ptr + row * groups + group, 0)
        out = merged_parts(highest_ptr, total_ptr, mixed_ptr, place, chunks, d, REP, RP, D, DP).to(
            q.dtype
        )
        lane = tl.arange(0, RP)
        out_row = out_ptr + (row * groups * REP + group * REP + lane)[None, :] * D + d[:, None]
        tl.store(out_row, out, mask=(lane < REP)[None, :] & (d < D)[:, None])


@triton.jit
def load_keys(
    keys_ptr,  # of this layer and head
    table_ptr,
    hidden_row,
    chunk,
    position,
    last,  # chunks of this program end here
    d,
    page_stride,
    side_stride,
    position_stride,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,
    HIDES: tl.constexpr,
):
    """(keys, values [CHUNK, D] of a chunk's earlier positions, zeros elsewhere; seen [CHUNK],
    the row's own position included)."""
    n = chunk * CHUNK + tl.arange(0, CHUNK)
    there = (n <= position) & (n * 0 + chunk < last)
    at = key_offsets(table_ptr, n, there, page_stride, position_stride, PAGE, WHOLE)
    if HIDES:
        there = there & (tl.load(hidden_row + n, mask=there, other=1) == 0)
    # what is not seen may hold NaN, and 0 * NaN is NaN
    held = (there & (n < position))[:, None] & (d < D)[None, :]
    k = tl.load(keys_ptr + at[:, None] + d[None, :], mask=held, other=0.0)
    v = tl.load(keys_ptr + side_stride + at[:, None] + d[None, :], mask=held, other=0.0)
    return k, v, there


@triton.jit
def merged_parts(
    highest_ptr,
    total_ptr,
    mixed_ptr,
    place,
    chunks,
    d,
    REP: tl.constexpr,
    RP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
):
    """[D, REP] float32: the chunks' partial results, merged ascending."""
    lane = tl.arange(0, RP)
    highest = tl.full((RP,), float("-inf"), tl.float32)
    total = tl.zeros((RP,), tl.float32)
    mixed = tl.zeros((DP, RP), tl.float32)
    for start in range(0, chunks, 8):
        for i in tl.static_range(8):
            chunk = start + i
            there = (lane < REP) & (lane * 0 + chunk < chunks)
            part = (place + chunk) * REP + lane
            c_highest = tl.load(
                highest_ptr + part, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            c_total = tl.load(total_ptr + part, mask=there, other=0.0, cache_modifier=".cg")
            c_mixed = tl.load(
                mixed_ptr + part[None, :] * D + d[:, None],
                mask=there[None, :] & (d < D)[:, None],
                other=0.0,
                cache_modifier=".cg",
            )
            highest, total, mixed = merge_across(highest, total, mixed, c_highest, c_total, c_mixed)
    return finished_across(total, mixed)
