"""Reference attention over the paged pool: one chunk rule, the same bits however rows are batched.

Query rows sit in tiles of a few rows of one cell (a decode row has a tile to itself). Keys are
taken 128 positions at a time from absolute position 0, always as products of one fixed shape:
scores [lanes x head_dim x 128], weighted values [lanes x 128 x head_dim]. A chunk's weights are
rounded to the model's dtype before both their sum and the product with the values; chunks merge
ascending. A chunk that holds no visible key leaves a row as it was, so extra chunks change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

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
_MOST_KEPT = 8  # chunks

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
        parts = None
        for chunk in _chunks(rows):
            keys, values = _window(rows, chunk)
            if not rows.store:
                keys, values = (_lay_over(*w, rows, chunk.at) for w in ((keys, k), (values, v)))
            parts = _merge(parts, _mix(queries, keys, values, chunk, scale, q.dtype))
        if parts is None:
            raise ValueError("attention over no chunk of keys")
        return _untile(parts, rows, q)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """128 keys as tiles see them: `at` int64 [128] their positions; vectors int64 [2 T G 128],
    where keys and then values lie, counted in vectors of the layer; visible [T, 1, lanes, 128] 1 or
    0 in float32; unseen the same, 0 or the lowest score."""

    at: Tensor
    vectors: Tensor
    visible: Tensor
    unseen: Tensor


def _chunks(rows: KVRows) -> Iterator[_Chunk]:
    """The chunks of these rows. The layers of a launch differ in `unit` alone and share them, but
    for those of a long context, which are made again: all at once they would take much memory."""
    kept = cast("_Kept", rows.kept.get("chunks") or _keep(rows))
    yield from kept.chunks
    for chunk in range(len(kept.chunks), len(kept.pages)):
        yield _make_chunk(rows, chunk, kept.pages[chunk], kept.row_len)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What all chunks are made of: pages [chunks, T, pages], row_len [T, lanes]; the first ones."""

    pages: Tensor
    row_len: Tensor
    chunks: list[_Chunk]


def _keep(rows: KVRows) -> _Kept:
    row_len = rows.key_len[rows.tile_rows]
    # clone, here and below, where reshape would copy or not according to the row count
    pages = rows.tile_pages.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    first = range(min(len(pages), _MOST_KEPT))
    made = [_make_chunk(rows, chunk, pages[chunk], row_len) for chunk in first]
    rows.kept["chunks"] = kept = _Kept(pages, row_len, made)
    return kept


def _make_chunk(rows: KVRows, chunk: int, pages: Tensor, row_len: Tensor) -> _Chunk:
    """One chunk, of each tile's pages [T, pages] and its rows' lengths [T, lanes]."""
    start = chunk * CHUNK_KEYS
    at = torch.arange(start, start + CHUNK_KEYS, device=pages.device)
    held = at < row_len.amax(1, keepdim=True)
    seen = at < row_len.unsqueeze(-1)
    if rows.hidden is not None:
        present = ~rows.hidden[:, chunk]
        held, seen = held & present, seen & present.unsqueeze(1)
    visible = seen.float().unsqueeze(1)
    return _Chunk(at, _vectors(rows.pool, pages, held), visible, (1 - visible) * _LOWEST)


def _vectors(pool: Tensor, pages: Tensor, held: Tensor) -> Tensor:
    """_Chunk.vectors. Positions past a tile's last key, and hidden ones (not in `held` [T, 128]),
    are read from the sentinel page, which holds zeros: pages may hold NaN there, and 0 * NaN is
    NaN."""
    _, _, _, page_size, groups, size = pool.shape
    page, _, side = (stride // size for stride in pool.stride()[:3])
    inside = torch.arange(page_size, device=pool.device) * groups
    at = torch.where(held, ((pages * page)[:, :, None] + inside).view(held.shape), 0)
    heads = torch.arange(groups, device=pool.device)[:, None]
    keys = (at[:, None] + heads).view(-1)
    return torch.cat((keys, keys + side))


def _write(rows: KVRows, k: Tensor, v: Tensor) -> None:
    """Rows that must not write leave zeros on the sentinel page: masked reads find zeros there."""
    if "writes" not in rows.kept:
        rows.kept["writes"] = (rows.write_page != SENTINEL_PAGE)[:, None, None, None]
    both = torch.where(cast(Tensor, rows.kept["writes"]), torch.stack((k, v), 1), 0.0)
    where = (rows.write_page, rows.write_offset)
    rows.pool[:, rows.unit].transpose(1, 2).index_put_(where, both)


def _tile_queries(q: Tensor, rows: KVRows, groups: int) -> Tensor:
    """[T * G, rep * lanes, d] float32; lanes without a row are zero."""
    _, heads, size = q.shape
    lanes = rows.tile_rows.shape[1]
    padded = torch.constant_pad_nd(q, (0, 0, 0, 0, 0, 1)).float()
    tiles = padded[rows.tile_rows].unflatten(2, (groups, heads // groups))
    moved: Tensor = tiles.permute(0, 2, 3, 1, 4).clone(memory_format=torch.contiguous_format)
    return _wide(moved.view(-1, heads // groups * lanes, size))


def _window(rows: KVRows, chunk: _Chunk) -> tuple[Tensor, Tensor]:
    """Keys and values of a chunk, float32 [T, G, 128, d] each. One pass gathers, masks and puts the
    heads first (measured: four times faster than page by page)."""
    pool = rows.pool
    pages, _, sides, page_size, groups, size = pool.shape
    page, unit = pool.stride(0), pool.stride(1)
    # From the layer's first vector to the end of its part of the last page.
    shape = ((pages - 1) * (page // size) + sides * page_size * groups, size)
    vectors = pool.as_strided(shape, (size, 1), pool.storage_offset() + rows.unit * unit)
    found = vectors.index_select(0, chunk.vectors)
    both = _wide(found.view(sides, -1, groups, CHUNK_KEYS, size).float())
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


def _mix(
    queries: Tensor, keys: Tensor, values: Tensor, chunk: _Chunk, scale: float, dtype: torch.dtype
) -> _Parts:
    """The parts of one chunk, [T, H, lanes, 1 or d]; keys and values [T, G, 128, d]."""
    tiles, _, lanes, _ = chunk.visible.shape
    scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
    scores = scores.view(tiles, -1, lanes, CHUNK_KEYS).mul_(scale).add_(chunk.unseen)
    highest = scores.amax(-1, keepdim=True).clamp_min_(_LOWEST)
    weights = scores.sub_(highest).clamp_min_(_FAINTEST).exp_().mul_(chunk.visible)
    weights = weights.to(dtype).float()
    total = weights.sum(-1, keepdim=True)
    mixed = torch.bmm(weights.view(*queries.shape[:2], CHUNK_KEYS), values.flatten(0, 1))
    return highest, total, mixed.view(tiles, -1, lanes, queries.shape[-1])


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
