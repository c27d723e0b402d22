"""What ring.py is made of: copies of blocks, and the products of one chunk."""

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

from rlt_kernels.attention.chunk import BLOCK, CHUNK
from rlt_kernels.attention.turn import turned

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

PART = gl.constexpr(16)  # positions of a chunk that are changed at once
# Their names changed after Triton 3.6.
meet = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def queries(
    heads_ptr, cos_row, sin_row, flat: gl.constexpr, REP: gl.constexpr, LANES: gl.constexpr,
    D: gl.constexpr, DP: gl.constexpr, ROPE: gl.constexpr, INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """The queries of a KV head, turned and across: [DP, LANES] in shared memory."""
    dtype: gl.constexpr = heads_ptr.dtype.element_ty
    d = gl.arange(0, DP, layout=gl.SliceLayout(1, flat))
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, flat))
    inside = (lane < REP)[None, :] & (d < D)[:, None]
    from_ptr = heads_ptr + lane[None, :] * D
    q = turned(from_ptr, inside, d[:, None], cos_row, sin_row, ROPE, INTERLEAVED)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DP, LANES], dtype)
    return gl.allocate_shared_memory(dtype, [DP, LANES], layout, q)


@gluon.jit
def all_ones(dtype: gl.constexpr, wide: gl.constexpr):
    """Ones [64, 16] in shared memory, with which a product adds the weights up."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 16], dtype)
    return gl.allocate_shared_memory(dtype, [64, 16], layout, gl.full([64, 16], 1.0, dtype, wide))


@gluon.jit
def scores(ring, q, flat: gl.constexpr, LANES: gl.constexpr):
    """Products of the chunk's two blocks of keys with the queries: float32 [BLOCK, LANES] each."""
    zeros = gl.full([BLOCK, LANES], 0.0, gl.float32, flat)
    one = warpgroup_mma(ring.index(0), q, zeros, use_acc=False, is_async=True)
    two = warpgroup_mma(ring.index(1), q, zeros, use_acc=False, is_async=True)
    one, two = warpgroup_mma_wait(0, deps=(one, two))
    meet()
    return one, two


@gluon.jit
def weigh(one, two, weights, start, position, scale, flat: gl.constexpr):
    """Write the weights of the chunk's keys; the highest score [LANES]."""
    n = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, flat))
    one = gl.where((start + n <= position)[:, None], one * scale, float("-inf"))
    two = gl.where((start + BLOCK + n <= position)[:, None], two * scale, float("-inf"))
    highest = gl.maximum(gl.max(one, 0), gl.max(two, 0))
    base = gl.where(highest == float("-inf"), 0.0, highest)[None, :]
    weights.slice(0, BLOCK).store(gl.exp2(one - base).to(weights.dtype))
    weights.slice(BLOCK, BLOCK).store(gl.exp2(two - base).to(weights.dtype))
    fence_async_shared()
    meet()
    return highest


@gluon.jit
def add_up(weights, ones, flat: gl.constexpr, LANES: gl.constexpr):
    """The sums of the weights [BLOCK, LANES], all rows alike: started, not awaited."""
    zeros = gl.full([BLOCK, LANES], 0.0, gl.float32, flat)
    total = warpgroup_mma(ones, weights.slice(0, 16), zeros, use_acc=False, is_async=True)
    for i in gl.static_range(1, CHUNK // 16):
        total = warpgroup_mma(ones, weights.slice(16 * i, 16), total, is_async=True)
    return total


@gluon.jit
def mix(ring, weights, total, flat: gl.constexpr, DP: gl.constexpr, LANES: gl.constexpr):
    """(sums of the weights [LANES], weighted values [DP, LANES]) of the chunk."""
    zeros = gl.full([DP, LANES], 0.0, gl.float32, flat)
    one, two = weights.slice(0, BLOCK), weights.slice(BLOCK, BLOCK)
    keys = ring.index(2).permute((1, 0))
    mixed = warpgroup_mma(keys, one, zeros, use_acc=False, is_async=True)
    mixed = warpgroup_mma(ring.index(3).permute((1, 0)), two, mixed, is_async=True)
    total, mixed = warpgroup_mma_wait(0, deps=(total, mixed))
    meet()
    return gl.max(total, 0), mixed


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
def bring(
    pieces, one, two, column, need, ready, ring,
    slot: gl.constexpr, PIECE: gl.constexpr, DP: gl.constexpr,
):  # fmt: skip
    """Start the copies of a chunk's keys, or values, into two slots of the ring. `need` of them are
    wanted: pieces behind those come from the sentinel page, and so from the cache. What is expected
    and what is started is the same for every chunk, since each costs a barrier of the program."""
    per: gl.constexpr = BLOCK // PIECE
    mbarrier.expect(ready, CHUNK * DP * 2)
    for i in gl.static_range(CHUNK // PIECE):
        row = (one if i < per else two) + i % per * PIECE
        at = [gl.where(i * PIECE < need, row, 0), column]
        copy_in(pieces, at, ready, ring.index(slot + i // per).slice(i % per * PIECE, PIECE))


@gluon.jit
def bring_first(
    pieces, one, two, column, need, ready, ring,
    SIDE_ROWS: gl.constexpr, PIECE: gl.constexpr, DP: gl.constexpr,
):  # fmt: skip
    """Start the copies of the first chunk's keys and values."""
    bring(pieces, one, two, column, need, ready.index(0), ring, 0, PIECE, DP)
    one, two = one + SIDE_ROWS, two + SIDE_ROWS
    bring(pieces, one, two, column, need, ready.index(1), ring, 2, PIECE, DP)


@gluon.jit
def put_key(ring, own, start, position, wide: gl.constexpr):
    """The row's own key in its place of the last chunk. What comes later is masked."""
    per: gl.constexpr = BLOCK // PART
    for i in gl.static_range(CHUNK // PART):
        first = start + i * PART
        if (first <= position) & (position < first + PART):
            part = ring.index(i // per).slice(i % per * PART, PART)
            n = first + gl.arange(0, PART, layout=gl.SliceLayout(1, wide))
            part.store(gl.where((n == position)[:, None], own[None, :], part.load(wide)))
    fence_async_shared()


@gluon.jit
def put_value(ring, own, start, position, wide: gl.constexpr, DP: gl.constexpr):
    """The row's own value in its place of the last chunk, and zeros for what comes later: that
    may hold NaN, and 0 * NaN is NaN."""
    per: gl.constexpr = BLOCK // PART
    for i in gl.static_range(CHUNK // PART):
        first = start + i * PART
        part = ring.index(2 + i // per).slice(i % per * PART, PART)
        if first > position:
            part.store(gl.full([PART, DP], 0.0, ring.dtype, wide))
        elif first + PART > position:
            n = first + gl.arange(0, PART, layout=gl.SliceLayout(1, wide))
            x = gl.where((n == position)[:, None], own[None, :], part.load(wide))
            part.store(gl.where((n <= position)[:, None], x, 0.0))
    fence_async_shared()
