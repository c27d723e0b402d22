"""Attention of decode rows whose keys and values the copy engine brings (TMA, sm_90).

A chunk is two blocks of 64 positions, each in one page: pages of 64 or 128 positions. Keys lie in
the first two places of a ring of four, values in the others; what is consumed is replaced at once
by the next chunk's. Nothing but a row's last chunk passes the registers: there, what the row may
not see is masked. The sums are those of decode.py in the same order, so the bits are the same.

Written in Gluon, because Triton keeps a whole chunk in registers or two in shared memory, and then
two programs or one fit a multiprocessor where three do here.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.attention.chunk import finished_across, merge_across
from rlt_kernels.attention.decode import store_own
from rlt_kernels.attention.parts import merge_when_last, store_part
from rlt_kernels.attention.turn import turned

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

CHUNK = gl.constexpr(128)
BLOCK = gl.constexpr(64)
# Their names changed after Triton 3.6.
meet = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


_ANY = ("page_row_ptr", "key_len_ptr", "pages_ptr", "pages_width")


@gluon.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=("pages_width",))
def ring_kernel(
    q_ptr,  # [R, H, D], rows q_stride apart
    k_ptr,
    v_ptr,
    out_ptr,  # [R, H, D]
    blocks,  # descriptor [positions, G x D] of this layer's keys and values
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
    # scores and weights [BLOCK, LANES]; weighted values [DP, LANES]
    flat: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, LANES, 16]
    )
    rows: gl.constexpr = gl.SliceLayout(1, flat)
    cols: gl.constexpr = gl.SliceLayout(0, flat)
    wide: gl.constexpr = gl.BlockedLayout(
        [1, 8], [2, 16], [WARPS, 1], [1, 0]
    )  # a block in registers
    wide_rows: gl.constexpr = gl.SliceLayout(1, wide)
    wide_cols: gl.constexpr = gl.SliceLayout(0, wide)
    merged: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [WARPS, 1], [0, 1])
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = gl.program_id(0).to(gl.int64)
    group = gl.program_id(1)
    place = row * gl.num_programs(1) + group
    num_keys = gl.load(key_len_ptr + row)
    chunks = ((num_keys + CHUNK - 1) // CHUNK).to(gl.int32)
    each = (chunks + SPLITS - 1) // SPLITS
    first = gl.program_id(2) * each
    last = gl.minimum(first + each, chunks)
    if first < last:
        position = num_keys - 1
        table_ptr = pages_ptr + gl.load(page_row_ptr + row) * pages_width
        column = group * D
        ring = gl.allocate_shared_memory(dtype, [4, BLOCK, DP], blocks.layout)
        ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(ready.index(0), count=1)
        mbarrier.init(ready.index(1), count=1)
        fence_async_shared()
        meet()
        one, two = block_rows(table_ptr, first, PAGE, PAGE_ROWS)
        bring(blocks, one, two, column, ready.index(0), ring, 0, DP)
        bring(blocks, one + SIDE_ROWS, two + SIDE_ROWS, column, ready.index(1), ring, 2, DP)
        # the rows after these, asked for long before they are needed
        one, two = block_rows(table_ptr, gl.minimum(first + 1, chunks - 1), PAGE, PAGE_ROWS)

        d = gl.arange(0, DP, layout=rows)
        lane = gl.arange(0, LANES, layout=cols)
        inside = (lane < REP)[None, :] & (d < D)[:, None]
        cos_row, sin_row = cos_ptr + position * cos_stride, sin_ptr + position * cos_stride
        heads_ptr = q_ptr + row * q_stride + (group * REP + lane)[None, :] * D
        q = turned(heads_ptr, inside, d[:, None], cos_row, sin_row, ROPE, INTERLEAVED)
        q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DP, LANES], dtype)
        q_shared = gl.allocate_shared_memory(dtype, [DP, LANES], q_layout, q)
        w_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, LANES], dtype)
        weights = gl.allocate_shared_memory(dtype, [CHUNK, LANES], w_layout)
        o_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 16], dtype)
        o_in: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [WARPS, 1], [1, 0])
        ones = gl.allocate_shared_memory(
            dtype, [64, 16], o_layout, gl.full([64, 16], 1.0, dtype, o_in)
        )
        fence_async_shared()

        wd = gl.arange(0, DP, layout=wide_cols)
        if last == chunks:
            own_ptr = k_ptr + row * k_stride + group * D
            k_own = turned(own_ptr, wd < D, wd, cos_row, sin_row, ROPE, INTERLEAVED)
            v_own = gl.load(v_ptr + row * v_stride + group * D + wd, mask=wd < D, other=0.0)
            page = gl.load(table_ptr + position // PAGE).to(gl.int64)
            to_ptr = pool_ptr + group * head_stride + page * page_stride
            to_ptr += (position % PAGE) * position_stride
            store_own(to_ptr, k_own, v_own, wd, side_stride, D)

        highest = gl.full([LANES], float("-inf"), gl.float32, cols)
        total = gl.full([LANES], 0.0, gl.float32, cols)
        mixed = gl.full([DP, LANES], 0.0, gl.float32, flat)
        zeros = gl.full([BLOCK, LANES], 0.0, gl.float32, flat)
        zeros_mixed = gl.full([DP, LANES], 0.0, gl.float32, flat)
        n = gl.arange(0, BLOCK, layout=rows)
        wn = gl.arange(0, BLOCK, layout=wide_rows)
        for chunk in range(first, last):
            phase = (chunk - first) & 1
            start = chunk * CHUNK
            mbarrier.wait(ready.index(0), phase)
            if chunk == chunks - 1:
                own_ptr = k_ptr + row * k_stride + group * D
                k_own = turned(own_ptr, wd < D, wd, cos_row, sin_row, ROPE, INTERLEAVED)
                put_own(ring.index(0), k_own, start + wn, position, wide)
                put_own(ring.index(1), k_own, start + BLOCK + wn, position, wide)
                fence_async_shared()
            s_one = warpgroup_mma(ring.index(0), q_shared, zeros, use_acc=False, is_async=True)
            s_two = warpgroup_mma(ring.index(1), q_shared, zeros, use_acc=False, is_async=True)
            s_one, s_two = warpgroup_mma_wait(0, deps=(s_one, s_two))
            meet()
            if chunk + 1 < last:
                bring(blocks, one, two, column, ready.index(0), ring, 0, DP)
            s_one = gl.where((start + n <= position)[:, None], s_one * scale, float("-inf"))
            s_two = gl.where((start + BLOCK + n <= position)[:, None], s_two * scale, float("-inf"))
            c_highest = gl.maximum(gl.max(s_one, 0), gl.max(s_two, 0))
            base = gl.where(c_highest == float("-inf"), 0.0, c_highest)[None, :]
            weights.slice(0, BLOCK).store(gl.exp2(s_one - base).to(dtype))
            weights.slice(BLOCK, BLOCK).store(gl.exp2(s_two - base).to(dtype))
            fence_async_shared()
            meet()
            c_total = warpgroup_mma(ones, weights.slice(0, 16), zeros, use_acc=False, is_async=True)
            for i in gl.static_range(1, CHUNK // 16):
                c_total = warpgroup_mma(ones, weights.slice(16 * i, 16), c_total, is_async=True)
            mbarrier.wait(ready.index(1), phase)
            if chunk == chunks - 1:
                v_own = gl.load(v_ptr + row * v_stride + group * D + wd, mask=wd < D, other=0.0)
                put_own(ring.index(2), v_own, start + wn, position, wide)
                put_own(ring.index(3), v_own, start + BLOCK + wn, position, wide)
                fence_async_shared()
            c_mixed = warpgroup_mma(
                ring.index(2).permute((1, 0)),
                weights.slice(0, BLOCK),
                zeros_mixed,
                use_acc=False,
                is_async=True,
            )
            c_mixed = warpgroup_mma(
                ring.index(3).permute((1, 0)), weights.slice(BLOCK, BLOCK), c_mixed, is_async=True
            )
            c_total, c_mixed = warpgroup_mma_wait(0, deps=(c_total, c_mixed))
            meet()
            if chunk + 1 < last:
                bring(blocks, one + SIDE_ROWS, two + SIDE_ROWS, column, ready.index(1), ring, 2, DP)
                one, two = block_rows(table_ptr, gl.minimum(chunk + 2, chunks - 1), PAGE, PAGE_ROWS)
            c_total = gl.max(c_total, 0)
            if SPLITS == 1:
                highest, total, mixed = merge_across(
                    highest, total, mixed, c_highest, c_total, c_mixed
                )
            else:
                part = (place * num_chunks + chunk) * REP + lane
                parts_ptr = mixed_ptr + part[None, :] * D + d[:, None]
                store_part(
                    highest_ptr + part,
                    total_ptr + part,
                    parts_ptr,
                    c_highest,
                    c_total,
                    c_mixed,
                    lane < REP,
                    inside,
                )
        mbarrier.invalidate(ready.index(0))
        mbarrier.invalidate(ready.index(1))
        out_row = out_ptr + place * REP * D
        if SPLITS == 1:
            out = finished_across(total, mixed).to(dtype)
            gl.store(out_row + lane[None, :] * D + d[:, None], out, mask=inside)
        else:
            merge_when_last(
                arrived_ptr + place,
                (chunks + each - 1) // each,
                highest_ptr,
                total_ptr,
                mixed_ptr,
                out_row,
                place * num_chunks,
                chunks,
                gl.arange(0, DP, layout=gl.SliceLayout(1, merged)),
                gl.arange(0, RP, layout=gl.SliceLayout(0, merged)),
                REP,
                D,
            )


@gluon.jit
def block_rows(table_ptr, chunk, PAGE: gl.constexpr, PAGE_ROWS: gl.constexpr):
    """The first rows of a chunk's two blocks of keys."""
    if PAGE == CHUNK:
        one = gl.load(table_ptr + chunk) * PAGE_ROWS
        two = one + BLOCK
    else:
        one = gl.load(table_ptr + 2 * chunk) * PAGE_ROWS
        two = gl.load(table_ptr + 2 * chunk + 1) * PAGE_ROWS
    return one, two


@gluon.jit
def bring(blocks, one, two, column, ready, ring, slot: gl.constexpr, DP: gl.constexpr):
    """Start the copies of two blocks into two slots of the ring."""
    mbarrier.expect(ready, 2 * BLOCK * DP * 2)
    copy_in(blocks, [one, column], ready, ring.index(slot))
    copy_in(blocks, [two, column], ready, ring.index(slot + 1))


@gluon.jit
def put_own(block, own, n, position, layout: gl.constexpr):
    """A block with the row's own vector in its place and zeros for what comes later, which may
    hold NaN, and 0 * NaN is NaN."""
    x = block.load(layout)
    x = gl.where((n == position)[:, None], own[None, :], x)
    block.store(gl.where((n <= position)[:, None], x, 0.0))
