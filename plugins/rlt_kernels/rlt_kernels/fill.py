"""The planes that an exit fills, in one launch for all rows and layers of a track."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.steps import FilledTrack

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit(do_not_specialize=("table_rows", "table_width", "first", "planes"))
def fill_targets(
    pool,  # [pages, unit_layers, 2, PAGE, SIZE]
    tables,  # int32 [S + 1, table_rows, table_width]
    slots,
    position,
    source,
    targets,  # bool [R, planes]
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
    ALL: tl.constexpr,  # PLANES as a power of two
):
    """A position's k and v of one layer; nothing is read for rows without targets."""
    row = tl.program_id(0).to(tl.int64)
    plane = tl.arange(0, ALL)
    wanted = tl.load(targets + row * planes + plane, mask=plane < PLANES, other=0)
    if tl.max(wanted.to(tl.int32), 0) == 0:
        return
    unit = tl.program_id(1) % UNITS
    part = tl.program_id(1) // UNITS
    at = tl.load(position + row)
    table = tables + (tl.load(slots + row) * table_rows + first + part) * table_width + at // PAGE
    inside = unit * unit_stride + (at % PAGE) * SIZE
    copy_to_planes(
        pool + inside, table, tl.load(source + row), targets + row * planes,
        table_width, page_stride, side_stride, PARTS, PLANES, SIZE, BLOCK,
    )  # fmt: skip


@triton.jit
def copy_to_planes(
    pool,  # the position in one layer of page 0
    table,  # the entry of the position's page in the track's plane 0
    source,  # the plane to copy from
    wanted,  # bool [PLANES]: those to copy to
    table_width, page_stride, side_stride,
    PARTS: tl.constexpr, PLANES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of one position and layer, from one plane to others."""
    size = tl.arange(0, BLOCK)
    whole = size < SIZE
    from_page = tl.load(table + source * PARTS * table_width).to(tl.int64)
    from_at = pool + from_page * page_stride + size
    keys = tl.load(from_at, mask=whole)
    values = tl.load(from_at + side_stride, mask=whole)
    for plane in range(PLANES):
        if tl.load(wanted + plane) != 0:
            to_page = tl.load(table + plane * PARTS * table_width).to(tl.int64)
            to_at = pool + to_page * page_stride + size
            tl.store(to_at, keys, mask=whole)
            tl.store(to_at + side_stride, values, mask=whole)


def fill(
    track: FilledTrack,
    tables: Tensor,
    slot: Tensor,
    position: Tensor,
    source: Tensor,
    targets: Tensor,
) -> None:
    """See contract.steps.FillPlanes."""
    pool = track.pool
    units, page, size = pool.shape[1], pool.shape[3], pool.shape[4] * pool.shape[5]
    fill_targets[(slot.shape[0], track.parts * units)](
        pool, tables, slot, position, source, targets.contiguous(),
        tables.shape[1], tables.shape[2], track.first, targets.shape[1],
        pool.stride(0), pool.stride(1), pool.stride(2),
        UNITS=units, PARTS=track.parts, PLANES=track.num_planes, PAGE=page, SIZE=size,
        BLOCK=triton.next_power_of_2(size), ALL=triton.next_power_of_2(track.num_planes),
        num_warps=4,
    )  # fmt: skip
