"""Reference attention over the paged pool: one chunk rule, the same bits however rows are batched.

Query rows sit in tiles of 16 rows of one cell (a decode row has a tile to itself). Keys are taken
128 positions at a time from absolute position 0, always as products of one fixed shape: scores
[16 x head_dim x 128], weighted values [16 x 128 x head_dim]. A chunk's weights are rounded to the
model's dtype before both their sum and the product with the values; chunks merge ascending. A
chunk that holds no visible key leaves a row as it was, so extra chunks change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_core.kv.plan import CHUNK_KEYS

if TYPE_CHECKING:
    from rlt_core.contract.protocols import KVRows

TILE_ROWS = 16
# The running maximum starts finite, so that a row without visible keys gives 0 and not NaN.
_LOWEST = -1e30
_SMALLEST_TOTAL = 1e-30


class TorchAttention:
    """protocols.Attention in plain torch; exact, any device, page size and head size."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
        """q [R, H, d], k and v [R, G, d], rotated -> [R, H, d]; writes first if rows.store.

        Without store every row must have a tile to itself: its k and v lie over the pages there.
        """
        if rows.store:
            _write(rows, k, v)
        queries = _tile_queries(q, rows, k.shape[1])
        row_len = rows.key_len[rows.tile_rows]
        # clone, here and below, where reshape would copy or not according to the row count
        pages = rows.tile_pages.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        parts = None
        for chunk in range(len(pages)):
            keys = torch.arange(CHUNK_KEYS, device=q.device) + chunk * CHUNK_KEYS
            window = _window(rows, pages[chunk], keys < row_len.amax(1, keepdim=True))
            if not rows.store:
                _lay_over(window, rows, k, v, keys)
            hidden = keys >= row_len.unsqueeze(-1)
            parts = _chunk(queries, window, hidden, scale, q.dtype, parts)
        if parts is None:
            raise ValueError("attention over no chunk of keys")
        return _untile(parts, rows, q)


_Parts = tuple[Tensor, Tensor, Tensor]  # running maximum, sum of weights, weighted values


def _write(rows: KVRows, k: Tensor, v: Tensor) -> None:
    where = (rows.write_page, rows.write_offset)
    for side, values in enumerate((k, v)):
        rows.pool[:, rows.unit, side].index_put_(where, values)


def _tile_queries(q: Tensor, rows: KVRows, groups: int) -> Tensor:
    """[T * G, rep * 16, d] float32; lanes without a row are zero."""
    _, heads, size = q.shape
    padded = torch.constant_pad_nd(q, (0, 0, 0, 0, 0, 1)).float()
    tiles = padded[rows.tile_rows].unflatten(2, (groups, heads // groups))
    moved: Tensor = tiles.permute(0, 2, 3, 1, 4).clone(memory_format=torch.contiguous_format)
    return moved.view(-1, heads // groups * TILE_ROWS, size)


def _window(rows: KVRows, pages: Tensor, valid: Tensor) -> Tensor:
    """Keys and values of a chunk's pages [T, pages], float32 [2, T, G, 128, d].

    Values past a tile's last key are zeroed: free pages may hold NaN, and 0 * NaN is NaN. Keys
    need no care, their scores are masked one by one.
    """
    found = rows.pool[:, rows.unit].index_select(0, pages.view(-1))
    moved = found.unflatten(0, pages.shape).permute(2, 0, 4, 1, 3, 5)
    window = torch.empty(moved.shape, dtype=torch.float32, device=found.device)
    window = window.copy_(moved).flatten(3, 4)
    window[1].masked_fill_(~valid[:, None, :, None], 0.0)
    return window


def _lay_over(window: Tensor, rows: KVRows, k: Tensor, v: Tensor, keys: Tensor) -> None:
    """Put each tile's own key and value at its own position, as a write would have."""
    first = rows.tile_rows[:, 0]
    own = (keys == rows.key_len[first].unsqueeze(1) - 1)[:, None, :, None]
    for side, values in enumerate((k, v)):
        padded = torch.constant_pad_nd(values, (0, 0, 0, 0, 0, 1)).float()
        laid = torch.where(own, padded[first].unsqueeze(2), window[side])
        window[side].copy_(laid)


def _chunk(
    queries: Tensor,
    window: Tensor,
    hidden: Tensor,
    scale: float,
    dtype: torch.dtype,
    before: _Parts | None,
) -> _Parts:
    """One chunk's scores and values, merged into what came before; parts are [T, *, 16, 1 | d]."""
    tiles, lanes = hidden.shape[0], hidden.shape[1]
    keys, values = window.flatten(1, 2).unbind(0)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(tiles, -1, lanes, CHUNK_KEYS)
    scores = scores.mul_(scale).masked_fill_(hidden.unsqueeze(1), -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp_min_(_LOWEST)
    highest = highest if before is None else torch.maximum(before[0], highest)
    weights = scores.sub_(highest).exp_().to(dtype).float()
    total = weights.sum(-1, keepdim=True)
    mixed = torch.bmm(weights.view(*queries.shape[:2], CHUNK_KEYS), values)
    mixed = mixed.view(tiles, -1, lanes, queries.shape[-1])
    if before is None:
        return highest, total, mixed
    shrink = (before[0] - highest).exp_()
    return highest, before[1] * shrink + total, before[2] * shrink + mixed


def _untile(parts: _Parts, rows: KVRows, q: Tensor) -> Tensor:
    # + 0.0: a chunk without visible keys may turn -0.0 into 0.0, so the sign of zero is dropped
    _, total, mixed = parts
    out = mixed / total.clamp_min(_SMALLEST_TOTAL) + 0.0
    return out.transpose(1, 2)[rows.row_tile, rows.row_lane].to(q.dtype)
