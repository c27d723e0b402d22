"""Reference attention over the paged pool: one chunk rule, the same bits however rows are batched.

Query rows sit in tiles of a few rows of one cell (a decode row has a tile to itself). Keys are
taken 128 positions at a time from absolute position 0, always as products of one fixed shape:
scores [lanes x head_dim x 128], weighted values [lanes x 128 x head_dim]. A chunk's weights are
rounded to the model's dtype before both their sum and the product with the values; chunks merge
ascending. A chunk that holds no visible key leaves a row as it was, so extra chunks change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_core.kv.plan import CHUNK_KEYS, SENTINEL_PAGE

if TYPE_CHECKING:
    from rlt_core.contract.protocols import KVRows

# Products with 5 to 7 or 9 to 11 columns change a row's bits with its lane (measured, AVX2).
SIZE_MULTIPLE = 16
WIDTH_MULTIPLE = 16
# The running maximum starts finite, so that a row without visible keys gives 0 and not NaN.
_LOWEST = -1e30
_SMALLEST_TOTAL = 1e-30
# exp of less takes denormal numbers or the library's special cases: 10 to 100 times slower. A
# weight of exp(-64) is lost in any sum of float32 beside the largest weight, which is 1.
_FAINTEST = -64.0

_Parts = tuple[Tensor, Tensor, Tensor]  # running maximum, sum of weights, weighted values


class TorchAttention:
    """protocols.Attention in plain torch; exact, any device, page size, head size and tile."""

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
            start = chunk * CHUNK_KEYS
            at = torch.arange(start, start + CHUNK_KEYS, device=q.device)
            held = at < row_len.amax(1, keepdim=True)
            seen = at < row_len.unsqueeze(-1)
            if rows.hidden is not None:
                present = ~rows.hidden[:, chunk]
                held, seen = held & present, seen & present.unsqueeze(1)
            keys, values = _window(rows, pages[chunk], held)
            if not rows.store:
                keys, values = (_lay_over(*w, rows, at) for w in ((keys, k), (values, v)))
            window = _Window(keys, values, seen.float().unsqueeze(1))
            parts = _chunk(queries, window, scale, q.dtype, parts)
        if parts is None:
            raise ValueError("attention over no chunk of keys")
        return _untile(parts, rows, q)


@dataclass(frozen=True, slots=True)
class _Window:
    """A chunk as tiles see it: keys and values [T, G, 128, d], visible [T, 1, lanes, 128] 1 or 0;
    all float32."""

    keys: Tensor
    values: Tensor
    visible: Tensor


def _write(rows: KVRows, k: Tensor, v: Tensor) -> None:
    """Rows that must not write leave zeros on the sentinel page: masked reads find zeros there."""
    where = (rows.write_page, rows.write_offset)
    writes = (rows.write_page != SENTINEL_PAGE)[:, None, None, None]
    both = torch.where(writes, torch.stack((k, v), 1), 0.0)
    rows.pool[:, rows.unit].transpose(1, 2).index_put_(where, both)


def _tile_queries(q: Tensor, rows: KVRows, groups: int) -> Tensor:
    """[T * G, rep * lanes, d] float32; lanes without a row are zero."""
    _, heads, size = q.shape
    lanes = rows.tile_rows.shape[1]
    padded = torch.constant_pad_nd(q, (0, 0, 0, 0, 0, 1)).float()
    tiles = padded[rows.tile_rows].unflatten(2, (groups, heads // groups))
    moved: Tensor = tiles.permute(0, 2, 3, 1, 4).clone(memory_format=torch.contiguous_format)
    return _wide(moved.view(-1, heads // groups * lanes, size))


def _window(rows: KVRows, pages: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of each tile's pages [T, pages], float32 [T, G, 128, d] each.

    Positions past a tile's last key, and hidden ones (not in `held` [T, 128]), are read from the
    sentinel page, which holds zeros: pages may hold NaN there, and 0 * NaN is NaN. One pass
    gathers, masks and puts the heads first (measured: four times faster than page by page).
    """
    pool = rows.pool
    _, _, sides, page_size, groups, size = pool.shape
    page, unit, side = (stride // size for stride in pool.stride()[:3])
    inside = torch.arange(page_size, device=pool.device) * groups + rows.unit * unit
    at = torch.where(held, ((pages * page)[:, :, None] + inside).view(held.shape), 0)
    heads = torch.arange(groups, device=pool.device)[:, None]
    keys = (at[:, None] + heads).view(-1)
    vectors = pool.as_strided((pool.shape[0] * page, size), (size, 1))
    found = vectors.index_select(0, torch.cat((keys, keys + side)))
    both = _wide(found.view(sides, len(pages), groups, CHUNK_KEYS, size).float())
    return both[0], both[1]


def _wide(vectors: Tensor) -> Tensor:
    """[..., d] with zeros up to a multiple of 16: products with 10 columns change a row's bits
    with its lane (measured)."""
    missing = -vectors.shape[-1] % WIDTH_MULTIPLE
    return torch.constant_pad_nd(vectors, (0, missing)) if missing else vectors


def _lay_over(window: Tensor, new: Tensor, rows: KVRows, at: Tensor) -> Tensor:
    """Each tile's own key or value at its own position, as a write would have put it."""
    first = rows.tile_rows[:, 0]
    own = (at == rows.key_len[first].unsqueeze(1) - 1)[:, None, :, None]
    padded = torch.constant_pad_nd(new, (0, 0, 0, 0, 0, 1)).float()
    return torch.where(own, _wide(padded[first].unsqueeze(2)), window)


def _chunk(
    queries: Tensor, window: _Window, scale: float, dtype: torch.dtype, before: _Parts | None
) -> _Parts:
    """One chunk, merged into what came before; parts are [T, H, lanes, 1 or d]."""
    tiles, _, lanes, _ = window.visible.shape
    keys, values = window.keys.flatten(0, 1), window.values.flatten(0, 1)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(tiles, -1, lanes, CHUNK_KEYS)
    scores = scores.mul_(scale).add_((1 - window.visible) * _LOWEST)
    highest = scores.amax(-1, keepdim=True).clamp_min_(_LOWEST)
    weights = scores.sub_(highest).clamp_min_(_FAINTEST).exp_().mul_(window.visible)
    weights = weights.to(dtype).float()
    total = weights.sum(-1, keepdim=True)
    mixed = torch.bmm(weights.view(*queries.shape[:2], CHUNK_KEYS), values)
    mixed = mixed.view(tiles, -1, lanes, queries.shape[-1])
    return _merge(before, (highest, total, mixed))


def _merge(before: _Parts | None, chunk: _Parts) -> _Parts:
    """Parts relative to the higher of two maxima; a chunk without visible keys changes nothing."""
    if before is None:
        return chunk
    highest = torch.maximum(before[0], chunk[0])
    old = (before[0] - highest).clamp_min_(_FAINTEST).exp_()
    new = (chunk[0] - highest).clamp_min_(_FAINTEST).exp_()
    return highest, before[1] * old + chunk[1] * new, before[2] * old + chunk[2] * new


def _untile(parts: _Parts, rows: KVRows, q: Tensor) -> Tensor:
    # + 0.0: a chunk without visible keys may turn -0.0 into 0.0, so the sign of zero is dropped
    _, total, mixed = parts
    out = mixed / total.clamp_min(_SMALLEST_TOTAL) + 0.0
    found = out.transpose(1, 2)[rows.row_tile, rows.row_lane, :, : q.shape[-1]]
    return found.to(q.dtype)
