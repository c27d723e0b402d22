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


@triton.jit(do_not_specialize=("R", "depths", "table_rows", "table_width", "first", "planes"))
def fill_rows(
    pool,  # [pages, unit_layers, 2, PAGE, SIZE]
    tables,  # int32 [S + 1, table_rows, table_width]
    slots,
    position,
    row_depth,
    rules,
    decided,
    loops,
    write,
    fill,  # bool [2, depths, depths, planes]
    R,
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
    ALL: tl.constexpr,  # at least PLANES, a power of two
    ROWS: tl.constexpr,
    RULES: tl.constexpr,  # whether there are any; else all rows have rule 1
):
    """ROWS positions' k and v of one layer, copied to the planes that the rows' exits fill. Nothing
    of them is read where no exit fills any, as none does at full depth."""
    start = tl.program_id(0).to(tl.int64) * ROWS
    many = start + tl.arange(0, ROWS)
    there = many < R
    exits = there & (tl.load(decided + many, mask=there, other=0) != 0)
    if tl.max(exits.to(tl.int32), 0) == 0:
        return
    entries = entry_of(many, exits, slots, row_depth, rules, loops, depths, RULES)
    plane = tl.arange(0, ALL)[None, :]
    filled = exits[:, None] & (plane < PLANES)
    filled = tl.load(fill + entries[:, None] * planes + plane, mask=filled, other=0)
    if tl.max(tl.max(filled.to(tl.int32), 1), 0) == 0:
        return
    unit = tl.program_id(1) % UNITS
    part = tl.program_id(1) // UNITS
    for row in range(start, start + ROWS):
        if tl.load(decided + row, mask=row < R, other=0) != 0:
            slot = tl.load(slots + row)
            at = tl.load(position + row)
            entry = entry_of(row, row >= 0, slots, row_depth, rules, loops, depths, RULES)
            table = tables + (slot * table_rows + first + part) * table_width + at // PAGE
            inside = unit * unit_stride + (at % PAGE) * SIZE
            copy_to_planes(
                pool + inside, table, tl.load(write + entry), fill + entry * planes,
                table_width, page_stride, side_stride, PARTS, PLANES, SIZE, BLOCK,
            )  # fmt: skip


@triton.jit
def entry_of(row, there, slots, row_depth, rules, loops, depths, RULES: tl.constexpr):
    """Where the layout's tables have what a row's loop writes and its exit fills."""
    last = tl.load(loops + tl.load(slots + row, mask=there, other=0), mask=there, other=0)
    loop = tl.load(row_depth + row, mask=there, other=0)
    rule = tl.full((), 1, tl.int64)
    if RULES:
        rule = tl.load(rules + row, mask=there, other=0)
    return (rule * depths + last) * depths + loop
