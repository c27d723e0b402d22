"""What attention backends of this package share: their rows, and the write of keys and values."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from rlt_core.contract.protocols import KVRows, PagedRows, Turn
from rlt_kernels.attention.prompt import write_kernel

# Which product of a turn a compiler fuses with the addition differs between kernels, and with it
# the last bit: fused multiply-adds are those that the kernels name.
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
_HEADS = 8


def paged_rows(rows: KVRows, num_rows: int) -> PagedRows:
    """The rows as a backend wants them that walks page tables, each tile with its own table."""
    tiles = rows.tile_rows
    lengths = (tiles < num_rows).sum(1)
    alone = tiles.shape[0] == num_rows  # every row has a tile to itself
    return PagedRows(
        pool=rows.pool,
        unit=rows.unit,
        pages=rows.tile_pages.flatten(1).int(),
        page_row=rows.row_tile,
        key_len=rows.key_len,
        num_single=num_rows if alone else 0,
        tile_first=tiles[:0, 0] if alone else tiles[:, 0].contiguous(),
        tile_len=lengths[:0] if alone else lengths,
        tile_rows=max(16, triton.next_power_of_2(tiles.shape[1])),
        store=rows.store,
        hidden=None if rows.hidden is None else rows.hidden.flatten(1),
        hidden_row=rows.row_tile,
    )


def write_rows(
    q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, turn: Turn | None, first: int
) -> Tensor:
    """Keys, turned, and values of the rows from `first` on go to the pool; their queries come
    back, turned: [R - first, H, d]. Rows that do nothing write nothing, and have any query."""
    heads, groups, size = q.shape[1], k.shape[1], q.shape[2]
    num = q.shape[0] - first
    pool = rows.pool[:, rows.unit]
    cos, sin, rope, interleaved = turn_arguments(turn, q)
    turned = torch.empty((num, heads, size), dtype=q.dtype, device=q.device)
    write_kernel[(num, triton.cdiv(heads, _HEADS))](
        q, k, v, turned, pool, rows.pages, rows.page_row, rows.key_len, cos, sin,
        first, *strides(pool), rows.pages.shape[1],
        q.stride(0), k.stride(0), v.stride(0), cos.stride(0),
        H=heads, G=groups, HEADS=_HEADS, D=size, DP=max(16, triton.next_power_of_2(size)),
        PAGE=rows.pool.shape[3], ROPE=rope, INTERLEAVED=interleaved, **OPTIONS,
    )  # fmt: skip
    return turned


def strides(pool: Tensor) -> tuple[int, int, int, int]:
    """Of pages, of values from keys, of positions and of heads."""
    return pool.stride(0), pool.stride(1), pool.stride(2), pool.stride(3)


def turn_arguments(turn: Turn | None, q: Tensor) -> tuple[Tensor, Tensor, int, bool]:
    """A turn's tables, sizes and pairing, as kernels take them; any tables for no turn."""
    if turn is None:
        return q, q, 0, False
    return turn.cos, turn.sin, turn.dim, turn.interleaved


def check_rows(q: Tensor, k: Tensor, v: Tensor, rows: PagedRows) -> None:
    """Raise ValueError with the shapes where they do not fit together."""
    heads, groups, size = q.shape[1], k.shape[1], q.shape[2]
    if heads % groups or k.shape != v.shape or k.shape[2] != size:
        raise ValueError(f"attention: q {[*q.shape]}, k {[*k.shape]} and v {[*v.shape]}")
    if [*rows.pool.shape[4:]] != [groups, size]:
        raise ValueError(f"attention: k {[*k.shape]} for a pool of {[*rows.pool.shape]}")
    if not rows.store and rows.num_single < q.shape[0]:
        raise ValueError("attention: rows in cells must store; only rows alone may leave the pool")
