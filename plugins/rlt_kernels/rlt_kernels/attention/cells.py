"""Attention of rows in cells whose keys and values the copy engine brings (TMA, sm_90).

What prompt.py's tile_kernel does, in the same order and so with the same bits: the tile's queries
stay in shared memory, the weights in registers, and a chunk's keys and values are replaced by the
next chunk's as soon as they are consumed. Two programs fit a multiprocessor, and each works while
the other waits.

Few tiles of long requests would leave most of the chip idle: then several programs share a tile,
each with a run of its chunks, whose partial results cell_merge.py puts together.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)

from rlt_kernels.attention.cell_merge import run_len
from rlt_kernels.attention.cell_parts import (
    HALF,
    column_of_ones,
    cut,
    tile_mix,
    tile_queries,
    tile_scores,
    tile_weights,
    visible_scores,
)
from rlt_kernels.attention.chunk import BLOCK, CHUNK, finished, merge
from rlt_kernels.attention.parts import store_part
from rlt_kernels.attention.ring_parts import block_rows, bring, bring_first, meet

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
_PLAIN = ("pages_width", "first_row", "num_tiles", "num_chunks")


@gluon.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=_PLAIN)
def cell_kernel(
    q_ptr,  # [N, H, D], turned
    out_ptr,  # [R, H, D]
    blocks,  # descriptor [positions, G x D] of this layer's keys and values
    pages_ptr,
    page_row_ptr,
    key_len_ptr,
    tile_first_ptr,  # int64 [T]: a tile's first row
    tile_len_ptr,  # int64 [T]: its rows; 0 for padding, which comes last
    highest_ptr,  # partial results float32 [rows in cells, H, num_chunks(, D)], where runs share
    total_ptr,
    mixed_ptr,
    first_row,
    num_tiles,
    num_chunks,
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
    ROOM: gl.constexpr,  # programs of a head that share the tiles; 0: one for each tile
    TILES: gl.constexpr,  # T, padded; where programs share
):
    WARPS: gl.constexpr = ROWS // 16
    flat: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 64, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    # All heads of the last tiles first: they see the most keys, and would end last. Behind the
    # tiles of a captured tick there is padding, which has nothing to do.
    head = gl.program_id(0)
    used = gl.num_programs(1)
    if ROOM > 0:
        index = gl.arange(0, TILES, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
        lengths = gl.load(tile_len_ptr + index, mask=index < num_tiles, other=0)
        used = gl.maximum(gl.sum((lengths > 0).to(gl.int32), 0), 1)
    tile = used - 1 - gl.program_id(1) % used
    first = gl.load(tile_first_ptr + tile)
    length = gl.load(tile_len_ptr + tile)
    lane = gl.arange(0, ROWS, layout=gl.SliceLayout(1, flat))
    num_keys = gl.load(key_len_ptr + first + lane, mask=lane < length, other=0).to(gl.int32)
    longest = gl.max(num_keys, 0)
    shortest = gl.min(gl.where(lane < length, num_keys, longest), 0)
    chunks = (longest + CHUNK - 1) // CHUNK
    table_ptr = pages_ptr + gl.load(page_row_ptr + first) * pages_width
    each = chunks
    if ROOM > 0:
        each = run_len(chunks, used, ROOM)
    begin = gl.program_id(1) // used * each
    end = gl.minimum(begin + each, chunks)
    if begin < end:
        column = head // REP * D
        ring = gl.allocate_shared_memory(dtype, [4, BLOCK, DP], blocks.layout)
        ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(ready.index(0), count=1)
        mbarrier.init(ready.index(1), count=1)
        fence_async_shared()
        meet()
        one, two = block_rows(table_ptr, begin, PAGE, PAGE_ROWS)
        need = longest - begin * CHUNK
        bring_first(blocks, one, two, column, need, ready, ring, SIDE_ROWS, BLOCK, DP)
        q_at = (first - first_row) * H + head
        q = tile_queries(q_ptr, q_at, key_len_ptr + first, length, wide, H, ROWS, D, DP)
        alone = each >= chunks
        part = ((first - first_row + lane) * H + head) * num_chunks
        left, right = walk_tile(
            blocks, ring, ready, q, table_ptr, column, num_keys, shortest, longest, scale,
            begin, end, chunks, alone, highest_ptr, total_ptr, mixed_ptr, part, lane < length,
            flat, wide, ROWS, D, DP, PAGE, PAGE_ROWS, SIDE_ROWS, ROOM,
        )  # fmt: skip
        mbarrier.invalidate(ready.index(0))
        mbarrier.invalidate(ready.index(1))
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
        d = gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
        out_at = (out_ptr + ((first + row) * H + head) * D)[:, None] + d[None, :]
        # what a program knows of its own run is no result
        inside = (row < gl.where(alone, length, 0))[:, None]
        out = gl.convert_layout(left.to(dtype), wide)
        gl.store(out_at, out, mask=inside & (d < D)[None, :])
        if DP > HALF:
            out = gl.convert_layout(right.to(dtype), wide)
            gl.store(out_at + HALF, out, mask=inside & (HALF + d < D)[None, :])


@gluon.jit
def walk_tile(
    blocks, ring, ready, q, table_ptr, column, num_keys, shortest, longest, scale,
    begin, end, chunks, alone, highest_ptr, total_ptr, mixed_ptr, part, lanes,
    flat: gl.constexpr, wide: gl.constexpr,
    ROWS: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, PAGE: gl.constexpr,
    PAGE_ROWS: gl.constexpr, SIDE_ROWS: gl.constexpr, ROOM: gl.constexpr,
):  # fmt: skip
    """The tile's results over the chunks from begin to end, all that its last row sees unless
    programs share it: float32 [ROWS, HALF], and the same of the other half of the head, where it is
    that large. A program that is not alone writes each chunk's own to part [ROWS], the first's
    place."""
    ones = column_of_ones(q.dtype, wide)
    highest = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, flat))
    total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, flat))
    left = gl.full([ROWS, HALF], 0.0, gl.float32, flat)
    right = left
    one, two = block_rows(table_ptr, gl.minimum(begin + 1, chunks - 1), PAGE, PAGE_ROWS)
    for chunk in range(begin, end):
        phase = (chunk - begin) & 1
        start = chunk * CHUNK
        more = chunk + 1 < end
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
        if chunk + 1 == chunks:
            cut(ring, 2, start, longest, wide)
        c_total, c_left, c_right = tile_mix(w_one, w_two, ring, ones, flat, ROWS, DP)
        if more:
            one, two = one + SIDE_ROWS, two + SIDE_ROWS
            bring(blocks, one, two, column, need, ready.index(1), ring, 2, BLOCK, DP)
            one, two = block_rows(table_ptr, gl.minimum(chunk + 2, chunks - 1), PAGE, PAGE_ROWS)
        if ROOM > 0:
            if alone == 0:
                store_chunk(
                    highest_ptr, total_ptr, mixed_ptr, part + chunk, lanes,
                    c_highest, c_total, c_left, c_right, flat, D, DP,
                )  # fmt: skip
        if DP > HALF:
            _, _, right = merge(highest, total, right, c_highest, c_total, c_right)
        highest, total, left = merge(highest, total, left, c_highest, c_total, c_left)
    return finished(total, left), finished(total, right)


@gluon.jit
def store_chunk(
    highest_ptr, total_ptr, mixed_ptr, part, lanes, highest, total, left, right,
    flat: gl.constexpr, D: gl.constexpr, DP: gl.constexpr,
):  # fmt: skip
    """Write a chunk's partial results, at part [ROWS]."""
    d = gl.arange(0, HALF, layout=gl.SliceLayout(0, flat))
    mixed_ptrs = mixed_ptr + part[:, None] * D + d[None, :]
    inside = lanes[:, None] & (d < D)[None, :]
    store_part(
        highest_ptr + part, total_ptr + part, mixed_ptrs, highest, total, left, lanes, inside
    )
    if DP > HALF:
        gl.store(mixed_ptrs + HALF, right, mask=lanes[:, None] & (HALF + d < D)[None, :])
