"""Attention of rows in cells whose keys and values the copy engine brings (TMA, sm_90).

What prompt.py's tile_kernel does, in the same order and so with the same bits: the tile's queries
stay in shared memory, the weights in registers, and a chunk's keys and values are replaced by the
next chunk's as soon as they are consumed. Two programs fit a multiprocessor, and each works while
the other waits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rlt_kernels.attention.chunk import finished, merge
from rlt_kernels.attention.ring_parts import BLOCK, CHUNK, block_rows, bring, meet

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_ANY = (
    "page_row_ptr",
    "key_len_ptr",
    "tile_first_ptr",
    "tile_len_ptr",
    "pages_ptr",
    "first_row",
    "pages_width",
)
_PLAIN = ("pages_width", "first_row")


@gluon.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=_PLAIN)
def cell_kernel(
    q_ptr,  # [N, H, D], turned
    out_ptr,  # [R, H, D]
    blocks,  # descriptor [positions, G x D] of this layer's keys and values
    pages_ptr,
    page_row_ptr,
    key_len_ptr,
    tile_first_ptr,  # int64 [T]: a tile's first row
    tile_len_ptr,  # int64 [T]: its rows
    first_row,
    pages_width,
    scale,
    H: gl.constexpr,
    REP: gl.constexpr,
    ROWS: gl.constexpr,  # 16 for each warp
    D: gl.constexpr,
    DP: gl.constexpr,
    PAGE: gl.constexpr,
    PAGE_ROWS: gl.constexpr,
    SIDE_ROWS: gl.constexpr,
):
    WARPS: gl.constexpr = ROWS // 16
    flat: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 64, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    tile = gl.program_id(0)
    head = gl.program_id(1)
    first = gl.load(tile_first_ptr + tile)
    length = gl.load(tile_len_ptr + tile)
    lane = gl.arange(0, ROWS, layout=gl.SliceLayout(1, flat))
    num_keys = gl.load(key_len_ptr + first + lane, mask=lane < length, other=0).to(gl.int32)
    longest = gl.max(num_keys, 0)
    chunks = (longest + CHUNK - 1) // CHUNK
    table_ptr = pages_ptr + gl.load(page_row_ptr + first) * pages_width
    column = head // REP * D
    ring = gl.allocate_shared_memory(dtype, [4, BLOCK, DP], blocks.layout)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=1)
    fence_async_shared()
    meet()
    if chunks > 0:
        one, two = block_rows(table_ptr, 0, PAGE, PAGE_ROWS)
        both = BLOCK < longest
        bring(blocks, one, two, column, both, ready.index(0), ring, 0, DP)
        bring(blocks, one + SIDE_ROWS, two + SIDE_ROWS, column, both, ready.index(1), ring, 2, DP)
        q_at = (first - first_row) * H + head
        q = tile_queries(q_ptr, q_at, key_len_ptr + first, length, wide, H, ROWS, D, DP)
        out = walk_tile(
            blocks, ring, ready, q, table_ptr, column, num_keys, longest, chunks, scale,
            flat, wide, ROWS, DP, PAGE, PAGE_ROWS, SIDE_ROWS,
        )  # fmt: skip
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
        d = gl.arange(0, DP, layout=gl.SliceLayout(0, wide))
        out_at = ((first + row) * H + head) * D
        inside = (row < length)[:, None] & (d < D)[None, :]
        out = gl.convert_layout(out.to(dtype), wide)
        gl.store(out_ptr + out_at[:, None] + d[None, :], out, mask=inside)
    mbarrier.invalidate(ready.index(0))
    mbarrier.invalidate(ready.index(1))


@gluon.jit
def tile_queries(
    q_ptr, q_at, key_len_ptr, length, wide: gl.constexpr,
    H: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, DP: gl.constexpr,
):  # fmt: skip
    """A tile's queries of one head [ROWS, DP] in shared memory; zeros where there are none."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
    d = gl.arange(0, DP, layout=gl.SliceLayout(0, wide))
    # rows that do nothing left no query behind
    there = gl.load(key_len_ptr + row, mask=row < length, other=0) > 0
    from_ptr = q_ptr + (q_at + row * H)[:, None] * D + d[None, :]
    q = gl.load(from_ptr, mask=there[:, None] & (d < D)[None, :], other=0.0)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DP], dtype)
    shared = gl.allocate_shared_memory(dtype, [ROWS, DP], layout, q)
    fence_async_shared()
    meet()
    return shared


@gluon.jit
def walk_tile(
    blocks, ring, ready, q, table_ptr, column, num_keys, longest, chunks, scale,
    flat: gl.constexpr, wide: gl.constexpr,
    ROWS: gl.constexpr, DP: gl.constexpr, PAGE: gl.constexpr,
    PAGE_ROWS: gl.constexpr, SIDE_ROWS: gl.constexpr,
):  # fmt: skip
    """The tile's results float32 [ROWS, DP], over all chunks that its last row sees."""
    ones = column_of_ones(q.dtype, wide)
    highest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, flat))
    total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, flat))
    mixed = gl.full([ROWS, DP], 0.0, gl.float32, flat)
    one, two = block_rows(table_ptr, gl.minimum(1, chunks - 1), PAGE, PAGE_ROWS)
    for chunk in range(chunks):
        phase = chunk & 1
        start = chunk * CHUNK
        more = chunk + 1 < chunks
        both = start + CHUNK + BLOCK < longest  # of the next chunk
        mbarrier.wait(ready.index(0), phase)
        s_one, s_two = tile_scores(q, ring, flat, ROWS)
        if more:
            bring(blocks, one, two, column, both, ready.index(0), ring, 0, DP)
        c_highest, w_one, w_two = tile_weights(s_one, s_two, start, num_keys, scale, flat, q.dtype)
        mbarrier.wait(ready.index(1), phase)
        if more == 0:
            cut(ring, 2, start, longest, wide)
        c_total, c_mixed = tile_mix(w_one, w_two, ring, ones, flat, ROWS, DP)
        if more:
            bring(
                blocks, one + SIDE_ROWS, two + SIDE_ROWS, column, both, ready.index(1), ring, 2, DP
            )
            one, two = block_rows(table_ptr, gl.minimum(chunk + 2, chunks - 1), PAGE, PAGE_ROWS)
        highest, total, mixed = merge(highest, total, mixed, c_highest, c_total, c_mixed)
    return finished(total, mixed)


@gluon.jit
def column_of_ones(dtype: gl.constexpr, wide: gl.constexpr):
    """Ones [BLOCK, 16] in shared memory, with which a product adds the weights up."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, 16], dtype)
    shared = gl.allocate_shared_memory(
        dtype, [BLOCK, 16], layout, gl.full([BLOCK, 16], 1.0, dtype, wide)
    )
    fence_async_shared()
    meet()
    return shared


@gluon.jit
def tile_scores(q, ring, flat: gl.constexpr, ROWS: gl.constexpr):
    """Products of the queries with the chunk's two blocks of keys: float32 [ROWS, BLOCK] each."""
    zeros = gl.full([ROWS, BLOCK], 0.0, gl.float32, flat)
    one = warpgroup_mma(q, ring.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    two = warpgroup_mma(q, ring.index(1).permute((1, 0)), zeros, use_acc=False, is_async=True)
    one, two = warpgroup_mma_wait(0, deps=(one, two))
    meet()
    return one, two


@gluon.jit
def tile_weights(
    one, two, start, num_keys, scale, flat: gl.constexpr, dtype: gl.constexpr
):  # fmt: skip
    """(highest score [ROWS], weights [ROWS, BLOCK] of the first and the second block)."""
    n = start + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, flat))
    one = gl.where(n[None, :] < num_keys[:, None], one * scale, float("-inf"))
    two = gl.where((n + BLOCK)[None, :] < num_keys[:, None], two * scale, float("-inf"))
    highest = gl.maximum(gl.max(one, 1), gl.max(two, 1))
    base = gl.where(highest == float("-inf"), 0.0, highest)[:, None]
    return highest, gl.exp2(one - base).to(dtype), gl.exp2(two - base).to(dtype)


@gluon.jit
def tile_mix(
    w_one, w_two, ring, ones, flat: gl.constexpr, ROWS: gl.constexpr, DP: gl.constexpr
):  # fmt: skip
    """(sums of the weights [ROWS], weighted values [ROWS, DP]) of the chunk."""
    WARPS: gl.constexpr = ROWS // 16
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 16, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, flat, 2)
    left_of_sums: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    a_one, a_two = gl.convert_layout(w_one, left), gl.convert_layout(w_two, left)
    b_one, b_two = gl.convert_layout(w_one, left_of_sums), gl.convert_layout(w_two, left_of_sums)
    zeros = gl.full([ROWS, DP], 0.0, gl.float32, flat)
    zeros_total = gl.full([ROWS, 16], 0.0, gl.float32, sums)
    mixed = warpgroup_mma(a_one, ring.index(2), zeros, use_acc=False, is_async=True)
    mixed = warpgroup_mma(a_two, ring.index(3), mixed, is_async=True)
    total = warpgroup_mma(b_one, ones, zeros_total, use_acc=False, is_async=True)
    total = warpgroup_mma(b_two, ones, total, is_async=True)
    total, mixed = warpgroup_mma_wait(0, deps=(total, mixed))
    meet()
    # sixteen equal columns: their maximum is any of them
    return gl.convert_layout(gl.max(total, 1), gl.SliceLayout(1, flat)), mixed


@gluon.jit
def cut(ring, slot: gl.constexpr, start, longest, wide: gl.constexpr):
    """Zeros for positions of the last chunk that nobody sees: they may hold NaN."""
    for i in gl.static_range(2):
        block = ring.index(slot + i)
        n = start + i * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, wide))
        block.store(gl.where((n < longest)[:, None], block.load(wide), 0.0))
    fence_async_shared()
    meet()
