"""How the rows of a launch are grouped into attention tiles: a few rows of one cell.

A tile shares its keys: all its rows belong to one request, plane and run of positions. Decode
rows are alone in their tile. Made on the host, from what the host knows: cells, never depths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import I64

# On a CPU a decode row pays for the products of a whole tile, and a prompt gathers its keys once a
# tile. Below 8 lanes the product library takes another path with other bits.
TILE = 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """rows int64 [T, TILE] (the row count for none), row_tile and row_lane int64 [R], first int64
    [T]: each tile's first row."""

    rows: Tensor
    row_tile: Tensor
    row_lane: Tensor
    first: Tensor


def make_tiles(num_single: int, cell_start: I64, device: torch.device) -> Tiles:
    """Tiles of `num_single` rows alone, then of the cells whose offsets are cell_start [C + 1]."""
    lengths = np.diff(cell_start)
    num_rows = num_single + int(cell_start[-1])
    tiles_of = -(-lengths // TILE)
    base = num_single + np.concatenate(([0], np.cumsum(tiles_of)))
    cell = np.repeat(np.arange(len(lengths)), lengths)
    offset = np.arange(int(cell_start[-1])) - cell_start[:-1][cell]
    row_tile = np.concatenate((np.arange(num_single), base[:-1][cell] + offset // TILE))
    row_lane = np.concatenate((np.zeros(num_single, np.int64), offset % TILE))
    rows = np.full((int(base[-1]), TILE), num_rows, np.int64)
    rows[row_tile, row_lane] = np.arange(num_rows)
    parts = (rows, row_tile, row_lane, rows[:, 0])
    return Tiles(*(torch.as_tensor(part, device=device) for part in parts))


def single_tiles(num_rows: int, device: torch.device) -> Tiles:
    """Every row alone in its tile."""
    return make_tiles(num_rows, np.zeros(1, np.int64), device)
