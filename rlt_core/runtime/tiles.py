"""How the rows of a launch are grouped into attention tiles: a few rows of one cell.

A tile shares its keys: all its rows belong to one request, plane and run of positions. Decode
rows are alone in their tile. Made on the host, from what the host knows: cells, never depths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import I64
from rlt_core.runtime.upload import Upload

# On a CPU a decode row pays for the products of a whole tile, and a prompt gathers its keys once a
# tile. Below 8 lanes the product library takes another path with other bits.
TILE = 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """rows int64 [T, lanes] (the row count for none), row_tile and row_lane int64 [R], first and
    length int64 [T]: each tile's first row and number of rows. The first num_single tiles are of
    rows alone."""

    rows: Tensor
    row_tile: Tensor
    row_lane: Tensor
    first: Tensor
    length: Tensor
    num_single: int


def make_tiles(
    num_single: int,
    cell_start: I64,
    upload: Callable[[Sequence[I64]], list[Tensor]],
    lanes: int = TILE,
) -> Tiles:
    """Tiles of `num_single` rows alone, then of the cells whose offsets are cell_start [C + 1], at
    most `lanes` rows each. `upload` brings the arrays to the device (Upload.ints)."""
    made = upload(tile_arrays(num_single, cell_start, lanes, num_single + int(cell_start[-1])))
    return Tiles(made[0], made[1], made[2], made[3], made[4], num_single)


def tile_arrays(
    num_single: int, cell_start: I64, lanes: int, none: int
) -> tuple[I64, I64, I64, I64, I64]:
    """The fields of Tiles on the host; `none` stands in `rows` where a tile has no row."""
    lengths = np.diff(cell_start)
    num_rows = num_single + int(cell_start[-1])
    tiles_of = -(-lengths // lanes)
    base = num_single + np.concatenate(([0], np.cumsum(tiles_of)))
    cell = np.repeat(np.arange(len(lengths)), lengths)
    offset = np.arange(int(cell_start[-1])) - cell_start[:-1][cell]
    row_tile = np.concatenate((np.arange(num_single), base[:-1][cell] + offset // lanes))
    row_lane = np.concatenate((np.zeros(num_single, np.int64), offset % lanes))
    rows = np.full((int(base[-1]), lanes), none, np.int64)
    rows[row_tile, row_lane] = np.arange(num_rows)
    return rows, row_tile, row_lane, rows[:, 0], np.bincount(row_tile, minlength=len(rows))


def single_tiles(num_rows: int, device: torch.device, lanes: int = TILE) -> Tiles:
    """Every row alone in its tile."""
    return make_tiles(num_rows, np.zeros(1, np.int64), Upload(device).ints, lanes)
