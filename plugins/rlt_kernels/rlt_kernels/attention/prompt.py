"""Attention of rows in cells (prompts, replay): their keys are written first, then tiles of rows
walk over the chunks that the last of them may see."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_kernels.attention.chunk import CHUNK, attend_chunk, finished, key_offsets, merge
from rlt_kernels.attention.turn import turned

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_ANY = (
    "page_row_ptr",
    "key_len_ptr",
    "hidden_ptr",
    "hidden_row_ptr",
    "tile_first_ptr",
    "tile_len_ptr",
    "pages_ptr",
    "first_row",
    "pages_width",
    "hidden_width",
)
_PLAIN = ("hidden_width", "pages_width", "first_row")


@triton.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=_PLAIN)
def write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    turned_ptr,  # [N, H, D]: the cells' queries, turned
    pool_ptr,
    pages_ptr,
    page_row_ptr,
    key_len_ptr,
    cos_ptr,
    sin_ptr,
    first_row,  # of the rows in cells
    page_stride,
    side_stride,
    position_stride,
    head_stride,
    pages_width,
    q_stride,
    k_stride,
    v_stride,
    cos_stride,
    H: tl.constexpr,
    G: tl.constexpr,
    HEADS: tl.constexpr,  # heads of a program
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = first_row + index
    num_keys = tl.load(key_len_ptr + row)
    if num_keys == 0:
        return
    position = num_keys - 1
    d = tl.arange(0, DP)[None, :]
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    cos_row = cos_ptr + position * cos_stride
    sin_row = sin_ptr + position * cos_stride
    there = (head < H) & (d < D)
    q = turned(q_ptr + row * q_stride + head * D, there, d, cos_row, sin_row, ROPE, INTERLEAVED)
    tl.store(turned_ptr + (index * H + head) * D + d, q, mask=there)
    there = (head < G) & (d < D)
    k = turned(k_ptr + row * k_stride + head * D, there, d, cos_row, sin_row, ROPE, INTERLEAVED)
    v = tl.load(v_ptr + row * v_stride + head * D + d, mask=there, other=0.0)
    own_row = tl.load(page_row_ptr + row)
    page = tl.load(pages_ptr + own_row * pages_width + position // PAGE).to(tl.int64)
    own_ptr = pool_ptr + page * page_stride + (position % PAGE) * position_stride
    own_ptr += head * head_stride + d
    tl.store(own_ptr, k, mask=there)
    tl.store(own_ptr + side_stride, v, mask=there)


@triton.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=_PLAIN)
def tile_kernel(
    q_ptr,  # [N, H, D], turned
    out_ptr,  # [R, H, D]
    pool_ptr,
    pages_ptr,
    page_row_ptr,
    key_len_ptr,
    tile_first_ptr,  # int64 [T]: a tile's first row
    tile_len_ptr,  # int64 [T]: its rows
    hidden_ptr,
    hidden_row_ptr,
    first_row,
    page_stride,
    side_stride,
    position_stride,
    head_stride,
    pages_width,
    hidden_width,
    scale,
    H: tl.constexpr,
    REP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    HIDES: tl.constexpr,
    DOT: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(tile_first_ptr + tile)
    length = tl.load(tile_len_ptr + tile)
    lane = tl.arange(0, ROWS)
    row = first + lane
    d = tl.arange(0, DP)
    there = lane < length
    num_keys = tl.load(key_len_ptr + row, mask=there, other=0)
    longest = tl.max(num_keys, 0)
    if longest == 0:
        return
    inside = there[:, None] & (d < D)[None, :]
    q_at = ((row - first_row) * H + head) * D
    # rows that do nothing left no query behind
    q = tl.load(
        q_ptr + q_at[:, None] + d[None, :], mask=inside & (num_keys > 0)[:, None], other=0.0
    )
    own_row = tl.load(page_row_ptr + first)
    table_ptr = pages_ptr + own_row * pages_width
    keys_ptr = pool_ptr + (head // REP) * head_stride
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DP), tl.float32)
    for chunk in tl.range(0, tl.cdiv(longest, CHUNK).to(tl.int32), num_stages=STAGES):
        n = chunk * CHUNK + tl.arange(0, CHUNK)
        at = key_offsets(table_ptr, n, n < longest, page_stride, position_stride, PAGE, WHOLE)
        held = n < longest
        seen = n[None, :] < num_keys[:, None]
        if HIDES:
            where = tl.load(hidden_row_ptr + first) * hidden_width + n
            gone = tl.load(hidden_ptr + where, mask=held, other=0) != 0
            held = held & ~gone
            seen = seen & ~gone[None, :]
        old = held[:, None] & (d < D)[None, :]
        k = tl.load(keys_ptr + at[:, None] + d[None, :], mask=old, other=0.0)
        v = tl.load(keys_ptr + side_stride + at[:, None] + d[None, :], mask=old, other=0.0)
        c_highest, c_total, c_mixed = attend_chunk(q, k, v, seen, scale, DOT)
        highest, total, mixed = merge(highest, total, mixed, c_highest, c_total, c_mixed)
    out = finished(total, mixed).to(q.dtype)
    out_at = (row * H + head) * D
    tl.store(out_ptr + out_at[:, None] + d[None, :], out, mask=inside)
