"""Attention of decode rows whose keys and values the copy engine brings (TMA, sm_90).

A chunk is two blocks of 64 positions, each in one page: pages of 64 or 128 positions. Keys lie in
the first two places of a ring of four, values in the others; what is consumed is replaced at once
by the next chunk's. Of a row's last chunk no more is brought than the row may see, to 32 positions;
its own key and value, and zeros behind them, are put there from the registers.
The sums are those of decode.py in the same order, so the bits are the same.

The first copies start before the kernel in front has ended. That one has seen the end of all those
before it, so positions, page tables and what other positions stored lie there; the row's own query,
key and value are read after its end.

Written in Gluon, because Triton keeps a whole chunk in registers or two in shared memory, and then
two programs or one fit a multiprocessor where three do here.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.attention.chunk import BLOCK, CHUNK, PIECE, finished_across, merge_across
from rlt_kernels.attention.decode import store_own
from rlt_kernels.attention.parts import merge_when_last, store_part
from rlt_kernels.attention.ring_parts import (
    add_up,
    all_ones,
    block_rows,
    bring,
    bring_first,
    meet,
    mix,
    put_key,
    put_value,
    queries,
    scores,
    weigh,
)
from rlt_kernels.attention.turn import turned

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_ANY = ("page_row_ptr", "key_len_ptr", "pages_ptr", "pages_width")


@gluon.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=("pages_width",))
def ring_kernel(
    q_ptr,  # [R, H, D], rows q_stride apart
    k_ptr,
    v_ptr,
    out_ptr,  # [R, H, D]
    pieces,  # descriptor [positions, G x D] of this layer's keys and values
    pool_ptr,  # keys of this layer in page 0
    pages_ptr,  # int32 [tables, pages_width]
    page_row_ptr,  # int64 [R]: the row's table
    key_len_ptr,  # int64 [R]: 0 for a row that does nothing
    cos_ptr,
    sin_ptr,
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
    cos_stride,
    scale,
    num_chunks,  # room of the partial results
    REP: gl.constexpr,  # query heads of a KV head
    LANES: gl.constexpr,
    D: gl.constexpr,
    DP: gl.constexpr,
    PAGE: gl.constexpr,
    SPLITS: gl.constexpr,  # programs of a row and KV head, each for a run of chunks
    RP: gl.constexpr,  # REP, padded as little as possible
    ROPE: gl.constexpr,
    INTERLEAVED: gl.constexpr,
    PAGE_ROWS: gl.constexpr,  # positions that a page's stride is
    SIDE_ROWS: gl.constexpr,  # and those from keys to values
    PDL: gl.constexpr,
):
    WARPS: gl.constexpr = 4
    flat: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, LANES, 16])  # results
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])  # a block
    merged: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [WARPS, 1], [0, 1])
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    row = gl.program_id(0).to(gl.int64)
    group = gl.program_id(1)
    place = row * gl.num_programs(1) + group
    num_keys = gl.load(key_len_ptr + row)
    position = num_keys - 1
    chunks = ((num_keys + CHUNK - 1) // CHUNK).to(gl.int32)
    each = (chunks + SPLITS - 1) // SPLITS
    first = gl.program_id(2) * each
    last = gl.minimum(first + each, chunks)
    table_ptr = pages_ptr + gl.load(page_row_ptr + row) * pages_width
    column = group * D
    ring = gl.allocate_shared_memory(dtype, [4, BLOCK, DP], pieces.layout)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    if first < last:
        mbarrier.init(ready.index(0), count=1)
        mbarrier.init(ready.index(1), count=1)
        fence_async_shared()
        meet()
        need = (position - first * CHUNK).to(gl.int32)
        one, two = block_rows(table_ptr, first, PAGE, PAGE_ROWS)
        bring_first(pieces, one, two, column, need, ready, ring, SIDE_ROWS, PIECE, DP)
    if PDL:
        # In programs without a chunk too: the next kernel trusts all of them to have waited.
        gdc_wait()
        gdc_launch_dependents()
    if first < last:
        cos_row, sin_row = cos_ptr + position * cos_stride, sin_ptr + position * cos_stride
        heads_ptr = q_ptr + row * q_stride + group * REP * D
        q = queries(heads_ptr, cos_row, sin_row, flat, REP, LANES, D, DP, ROPE, INTERLEAVED)
        wd = gl.arange(0, DP, layout=gl.SliceLayout(0, wide))
        k_own_ptr, v_own_ptr = k_ptr + row * k_stride + column, v_ptr + row * v_stride + column
        k_own = turned(k_own_ptr, wd < D, wd, cos_row, sin_row, ROPE, INTERLEAVED)
        v_own = gl.load(v_own_ptr + wd, mask=wd < D, other=0.0)
        if last == chunks:
            to_ptr = pool_ptr + group * head_stride + (position % PAGE) * position_stride
            to_ptr += gl.load(table_ptr + position // PAGE).to(gl.int64) * page_stride
            store_own(to_ptr, k_own, v_own, wd, side_stride, D)
        part = place * num_chunks * REP
        out_row = out_ptr + place * REP * D
        walk(
            pieces, ring, ready, q, table_ptr, column, k_own, v_own,
            highest_ptr + part, total_ptr + part, mixed_ptr + part * D, out_row,
            first, last, chunks, position, scale, flat, wide,
            REP, LANES, D, DP, PAGE, SPLITS, PAGE_ROWS, SIDE_ROWS,
        )  # fmt: skip
        if SPLITS > 1:
            merge_when_last(
                arrived_ptr + place, (chunks + each - 1) // each,
                highest_ptr, total_ptr, mixed_ptr, out_row, place * num_chunks, chunks,
                gl.arange(0, DP, layout=gl.SliceLayout(1, merged)),
                gl.arange(0, RP, layout=gl.SliceLayout(0, merged)), REP, D,
            )  # fmt: skip


@gluon.jit
def walk(
    pieces, ring, ready, q, table_ptr, column, k_own, v_own,
    highest_ptr, total_ptr, mixed_ptr,  # of the row's and group's first chunk
    out_row, first, last, chunks, position, scale, flat: gl.constexpr, wide: gl.constexpr,
    REP: gl.constexpr, LANES: gl.constexpr, D: gl.constexpr, DP: gl.constexpr,
    PAGE: gl.constexpr, SPLITS: gl.constexpr, PAGE_ROWS: gl.constexpr, SIDE_ROWS: gl.constexpr,
):  # fmt: skip
    """A program's chunks: the row's result, or each chunk's own where programs share a row."""
    dtype: gl.constexpr = q.dtype
    w_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, LANES], dtype)
    weights = gl.allocate_shared_memory(dtype, [CHUNK, LANES], w_layout)
    ones = all_ones(dtype, wide)
    fence_async_shared()
    d = gl.arange(0, DP, layout=gl.SliceLayout(1, flat))
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, flat))
    inside = (lane < REP)[None, :] & (d < D)[:, None]
    highest = gl.full([LANES], float("-inf"), gl.float32, gl.SliceLayout(0, flat))
    total = gl.full([LANES], 0.0, gl.float32, gl.SliceLayout(0, flat))
    mixed = gl.full([DP, LANES], 0.0, gl.float32, flat)
    # the rows after these, asked for long before they are needed
    one, two = block_rows(table_ptr, gl.minimum(first + 1, chunks - 1), PAGE, PAGE_ROWS)
    for chunk in range(first, last):
        phase = (chunk - first) & 1
        start = chunk * CHUNK
        need = (position - start - CHUNK).to(gl.int32)  # of the next chunk
        mbarrier.wait(ready.index(0), phase)
        if chunk == chunks - 1:
            put_key(ring, k_own, start, position, wide)
        s_one, s_two = scores(ring, q, flat, LANES)
        if chunk + 1 < last:
            bring(pieces, one, two, column, need, ready.index(0), ring, 0, PIECE, DP)
        c_highest = weigh(s_one, s_two, weights, start, position, scale, flat)
        c_total = add_up(weights, ones, flat, LANES)
        mbarrier.wait(ready.index(1), phase)
        if chunk == chunks - 1:
            put_value(ring, v_own, start, position, wide, DP)
        c_total, c_mixed = mix(ring, weights, c_total, flat, DP, LANES)
        if chunk + 1 < last:
            one, two = one + SIDE_ROWS, two + SIDE_ROWS
            bring(pieces, one, two, column, need, ready.index(1), ring, 2, PIECE, DP)
            one, two = block_rows(table_ptr, gl.minimum(chunk + 2, chunks - 1), PAGE, PAGE_ROWS)
        if SPLITS == 1:
            highest, total, mixed = merge_across(highest, total, mixed, c_highest, c_total, c_mixed)
        else:
            part = chunk * REP + lane
            parts_ptr = mixed_ptr + part[None, :] * D + d[:, None]
            store_part(
                highest_ptr + part, total_ptr + part, parts_ptr, c_highest, c_total, c_mixed,
                lane < REP, inside,
            )  # fmt: skip
    mbarrier.invalidate(ready.index(0))
    mbarrier.invalidate(ready.index(1))
    if SPLITS == 1:
        out = finished_across(total, mixed).to(dtype)
        gl.store(out_row + lane[None, :] * D + d[:, None], out, mask=inside)
