"""Rows of states between slots and ticks, and the planes that an exit fills."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_kernels.fill import copy_to_planes

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit(do_not_specialize=("W",))
def mix_rows(entering, kept, homes, enters, out, W, BLOCK: tl.constexpr):
    """out [R, W]: the entering state, or the one kept at the row's home."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < W
    if tl.load(enters + row) != 0:
        found = tl.load(entering + row * W + column, mask=inside)
    else:
        found = tl.load(kept + tl.load(homes + row) * W + column, mask=inside)
    tl.store(out + row * W + column, found, mask=inside)


@triton.jit(do_not_specialize=("W",))
def keep_rows(kept, homes, state, where, W, BLOCK: tl.constexpr):
    """kept at the row's home becomes its state [R, W], where it is to be kept."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(where + row) == 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(state + row * W + column, mask=column < W)
    tl.store(kept + tl.load(homes + row) * W + column, found, mask=column < W)


@triton.jit(do_not_specialize=("W",))
def read_rows(state, read_state, read_depth, homes, out, W, BLOCK: tl.constexpr):
    """out [L, W]: of each row's home what it was read out as, or the state as it is."""
    row = tl.program_id(0).to(tl.int64)
    home = tl.load(homes + row)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < W
    if tl.load(read_depth + home) != 0:
        found = tl.load(read_state + home * W + column, mask=inside)
    else:
        found = tl.load(state + home * W + column, mask=inside)
    tl.store(out + row * W + column, found, mask=inside)


@triton.jit(do_not_specialize=("depths", "table_rows", "table_width", "first", "planes"))
def fill_rows(
    pool,  # [pages, unit_layers, 2, PAGE, SIZE]
    tables,  # int32 [S + 1, table_rows, table_width]
    slots,
    position,
    row_depth,
    decided,
    loops,
    write,
    fill,  # bool [2, depths, depths, planes]
    depths,
    table_rows,
    table_width,
    first,
    planes,
    page_stride,
    unit_stride,
    side_stride,
    UNITS: tl.constexpr,
    PARTS: tl.constexpr,
    PLANES: tl.constexpr,  # of the track
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A position's k and v of one layer, copied to the planes that the row's exit fills."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(decided + row) == 0:
        return
    unit = tl.program_id(1) % UNITS
    part = tl.program_id(1) // UNITS
    slot = tl.load(slots + row)
    at = tl.load(position + row)
    entry = (depths + tl.load(loops + slot)) * depths + tl.load(row_depth + row)
    source = tl.load(write + entry)
    table = tables + (slot * table_rows + first + part) * table_width + at // PAGE
    inside = unit * unit_stride + (at % PAGE) * SIZE
    copy_to_planes(
        pool + inside, table, source, fill + entry * planes,
        table_width, page_stride, side_stride, PARTS, PLANES, SIZE, BLOCK,
    )  # fmt: skip
