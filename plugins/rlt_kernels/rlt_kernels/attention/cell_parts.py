"""What cells.py is made of: a tile's queries, and the products of one chunk."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rlt_kernels.attention.chunk import BLOCK
from rlt_kernels.attention.ring_parts import meet

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

# Sizes of a head that are mixed at a time: as many registers as there are for a chunk's own.
HALF = gl.constexpr(64)


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
