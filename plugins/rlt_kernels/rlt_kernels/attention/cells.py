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
from rlt_kernels.attention.ring_parts import BLOCK, CHUNK, block_rows, bring, bring_first, meet

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
# Sizes of a head that are mixed at a time: as many registers as there are for a chunk's own.
HALF = gl.constexpr(64)


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
    # All heads of the last tiles first: they see the most keys, and would end last. Behind the
    # tiles of a captured tick there is padding, which has nothing to do.
    head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)
    first = gl.load(tile_first_ptr + tile)
    length = gl.load(tile_len_ptr + tile)
    lane = gl.arange(0, ROWS, layout=gl.SliceLayout(1, flat))
    num_keys = gl.load(key_len_ptr + first + lane, mask=lane < length, other=0).to(gl.int32)
    longest = gl.max(num_keys, 0)
    shortest = gl.min(gl.where(lane < length, num_keys, longest), 0)
    chunks = (longest + CHUNK - 1) // CHUNK
    table_ptr = pages_ptr + gl.load(page_row_ptr + first) * pages_width
    if chunks > 0:
        column = head // REP * D
        ring = gl.allocate_shared_memory(dtype, [4, BLOCK, DP], blocks.layout)
        ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(ready.index(0), count=1)
        mbarrier.init(ready.index(1), count=1)
        fence_async_shared()
        meet()
        one, two = block_rows(table_ptr, 0, PAGE, PAGE_ROWS)
        bring_first(blocks, one, two, column, longest, ready, ring, SIDE_ROWS, BLOCK, DP)
        q_at = (first - first_row) * H + head
        q = tile_queries(q_ptr, q_at, key_len_ptr + first, length, wide, H, ROWS, D, DP)
        left, right = walk_tile(
            blocks, ring, ready, q, table_ptr, column, num_keys, shortest, longest, chunks, scale,
            flat, wide, ROWS, DP, PAGE, PAGE_ROWS, SIDE_ROWS,
        )  # fmt: skip
        mbarrier.invalidate(ready.index(0))
        mbarrier.invalidate(ready.index(1))
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
        d = gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
        out_at = (out_ptr + ((first + row) * H + head) * D)[:, None] + d[None, :]
        inside = (row < length)[:, None]
        out = gl.convert_layout(left.to(dtype), wide)
        gl.store(out_at, out, mask=inside & (d < D)[None, :])
        if DP > HALF:
            out = gl.convert_layout(right.to(dtype), wide)
            gl.store(out_at + HALF, out, mask=inside & (HALF + d < D)[None, :])


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
    blocks, ring, ready, q, table_ptr, column, num_keys, shortest, longest, chunks, scale,
    flat: gl.constexpr, wide: gl.constexpr,
    ROWS: gl.constexpr, DP: gl.constexpr, PAGE: gl.constexpr,
    PAGE_ROWS: gl.constexpr, SIDE_ROWS: gl.constexpr,
):  # fmt: skip
    """The tile's results, over all chunks that its last row sees: float32 [ROWS, HALF], and the
    same of the other half of the head, where it is that large."""
    ones = column_of_ones(q.dtype, wide)
    highest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, flat))
    total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, flat))
    left = gl.full([ROWS, HALF], 0.0, gl.float32, flat)
    right = left
    one, two = block_rows(table_ptr, gl.minimum(1, chunks - 1), PAGE, PAGE_ROWS)
    for chunk in range(chunks):
        phase = chunk & 1
        start = chunk * CHUNK
        more = chunk + 1 < chunks
        need = longest - start - CHUNK  # of the next chunk
        mbarrier.wait(ready.index(0), phase)
        s_one, s_two = tile_scores(q, ring, flat, ROWS)
        if more:
            bring(blocks, one, two, column, need, ready.index(0), ring, 0, BLOCK, DP)
        s_one, s_two = s_one * scale, s_two * scale
        if start + CHUNK > shortest:
            s_one, s_two = visible_scores(s_one, s_two, start, num_keys, flat)
        c_highest, w_one, w_two = tile_weights(s_one, s_two, q.dtype)
        mbarrier.wait(ready.index(1), phase)
        if more == 0:
            cut(ring, 2, start, longest, wide)
        c_total, c_left, c_right = tile_mix(w_one, w_two, ring, ones, flat, ROWS, DP)
        if more:
            one, two = one + SIDE_ROWS, two + SIDE_ROWS
            bring(blocks, one, two, column, need, ready.index(1), ring, 2, BLOCK, DP)
            one, two = block_rows(table_ptr, gl.minimum(chunk + 2, chunks - 1), PAGE, PAGE_ROWS)
        if DP > HALF:
            _, _, right = merge(highest, total, right, c_highest, c_total, c_right)
        highest, total, left = merge(highest, total, left, c_highest, c_total, c_left)
    return finished(total, left), finished(total, right)


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
def visible_scores(one, two, start, num_keys, flat: gl.constexpr):
    """The scores of the two blocks, -inf where a row may not see the key."""
    n = start + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, flat))
    one = gl.where(n[None, :] < num_keys[:, None], one, float("-inf"))
    two = gl.where((n + BLOCK)[None, :] < num_keys[:, None], two, float("-inf"))
    return one, two


@gluon.jit
def tile_weights(one, two, dtype: gl.constexpr):
    """(highest score [ROWS], weights [ROWS, BLOCK] of the first and the second block)."""
    highest = gl.maximum(gl.max(one, 1), gl.max(two, 1))
    base = gl.where(highest == float("-inf"), 0.0, highest)[:, None]
    return highest, gl.exp2(one - base).to(dtype), gl.exp2(two - base).to(dtype)


@gluon.jit
def tile_mix(
    w_one, w_two, ring, ones, flat: gl.constexpr, ROWS: gl.constexpr, DP: gl.constexpr
):  # fmt: skip
    """(sums of the weights [ROWS], weighted values [ROWS, HALF] of either half) of the chunk."""
    WARPS: gl.constexpr = ROWS // 16
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 16, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, flat, 2)
    operand_of_sums: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    a_one, a_two = gl.convert_layout(w_one, operand), gl.convert_layout(w_two, operand)
    b_one = gl.convert_layout(w_one, operand_of_sums)
    b_two = gl.convert_layout(w_two, operand_of_sums)
    zeros = gl.full([ROWS, HALF], 0.0, gl.float32, flat)
    zeros_total = gl.full([ROWS, 16], 0.0, gl.float32, sums)
    total = warpgroup_mma(b_one, ones, zeros_total, use_acc=False, is_async=True)
    total = warpgroup_mma(b_two, ones, total, is_async=True)
    one, two = ring.index(2), ring.index(3)
    left = warpgroup_mma(a_one, one.slice(0, HALF, 1), zeros, use_acc=False, is_async=True)
    left = warpgroup_mma(a_two, two.slice(0, HALF, 1), left, is_async=True)
    right = left
    if DP > HALF:
        right = warpgroup_mma(a_one, one.slice(HALF, HALF, 1), zeros, use_acc=False, is_async=True)
        right = warpgroup_mma(a_two, two.slice(HALF, HALF, 1), right, is_async=True)
        total, left, right = warpgroup_mma_wait(0, deps=(total, left, right))
    else:
        total, left = warpgroup_mma_wait(0, deps=(total, left))
    meet()
    # sixteen equal columns: their maximum is any of them
    return gl.convert_layout(gl.max(total, 1), gl.SliceLayout(1, flat)), left, right


@gluon.jit
def cut(ring, slot: gl.constexpr, start, longest, wide: gl.constexpr):
    """Zeros for positions of the last chunk that nobody sees: they may hold NaN."""
    for i in gl.static_range(2):
        block = ring.index(slot + i)
        n = start + i * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, wide))
        block.store(gl.where((n < longest)[:, None], block.load(wide), 0.0))
    fence_async_shared()
    meet()
