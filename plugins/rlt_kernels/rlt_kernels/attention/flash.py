"""The attention backend `flash`: FlashAttention 4 or 2 over the paged pool. Not exact.

Keys are turned and written as for the exact backend; then a decode row is a sequence of one query,
and a tile of a cell one of several, over the pages of its request. A row that may not write sees
what lies in the pool by the library, and its own key in a merge by the weights' logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.protocols import KVRows, PagedRows, Turn
from rlt_kernels.attention.flash_call import FlashCall, load_call
from rlt_kernels.attention.flash_spans import cell_spans, earlier_spans, single_spans
from rlt_kernels.attention.paged import check_rows, paged_rows, write_rows

# More positions than a request has.
_EVERY = 1 << 30


class FlashAttention:
    """protocols.PagedAttention, with the limits of the package that is installed
    (flash_library.FlashLibrary). PluginError where that cannot be called as it must be."""

    # A tile is a sequence, which the library cuts up by itself.
    tile_rows = 256

    def __init__(self) -> None:
        self._call: FlashCall = load_call()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
        """protocols.Attention, for rows whose tiles carry their own pages."""
        paged = paged_rows(rows, q.shape[0])
        return self.paged(q.contiguous(), k.contiguous(), v.contiguous(), paged, scale, None)

    def paged(
        self, q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, scale: float, turn: Turn | None
    ) -> Tensor:
        """q [R, H, d], k and v [R, G, d], not yet rotated -> [R, H, d]."""
        check_rows(q, k, v, rows)
        if rows.hidden is not None:
            raise ValueError("attention: flash cannot hide keys (hidden_keys)")
        if not rows.store:
            return self._without_store(q, k, v, rows, scale, turn)
        turned, num = write_rows(q, k, v, rows, turn, 0), rows.num_single
        parts = []
        if num:
            parts.append(self._call(turned[:num], *_sides(rows), single_spans(rows), scale)[0])
        if num < q.shape[0]:
            parts.append(self._call(turned[num:], *_sides(rows), cell_spans(rows), scale)[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _without_store(
        self, q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, scale: float, turn: Turn | None
    ) -> Tensor:
        own, turned = _own_keys(q, k, v, rows, turn)
        spans = earlier_spans(rows)
        out, logs = self._call(turned, *_sides(rows), spans, scale, logs=True)
        if logs is None:
            raise ValueError("attention: flash got no logarithms of the weights' sums")
        return merge_own(turned, own, v, out, logs.T, spans.lengths > 0, scale)


def merge_own(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logs: Tensor, any_key: Tensor, scale: float
) -> Tensor:
    """Attention over some keys, and each row's own key beside them: [R, H, d].

    q, out [R, H, d], own k and v [R, G, d]; logs float32 [R, H]: the logarithm of the sum of the
    weights that `out` was made with; any_key bool [R]: whether there were any, else `out` and
    `logs` may hold anything.
    """
    rows, heads, size = q.shape
    groups = k.shape[1]
    queries = q.float().view(rows, groups, heads // groups, size)
    score = (queries * k.float()[:, :, None]).sum(-1) * scale
    there = any_key[:, None, None]
    before = torch.where(there, logs.view(score.shape), -torch.inf)
    highest = torch.maximum(before, score)
    old, new = (before - highest).exp()[..., None], (score - highest).exp()[..., None]
    mixed = torch.where(there[..., None], out.float().view(queries.shape), 0.0)
    both = (mixed * old + v.float()[:, :, None] * new) / (old + new)
    return both.view(q.shape).to(q.dtype)


def _sides(rows: PagedRows) -> tuple[Tensor, Tensor]:
    """Keys and values of the layer, [pages, page_size, G, d]: views that step over the others."""
    layer = rows.pool[:, rows.unit]
    return layer[:, 0], layer[:, 1]


def _own_keys(
    q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, turn: Turn | None
) -> tuple[Tensor, Tensor]:
    """(keys [R, G, d], queries [R, H, d]), both turned, and the pool as it was.

    Keys are written to a pool in which each row has a page to itself, of one place that stands for
    every position: its positions are no step apart.
    """
    num = q.shape[0]
    places = torch.zeros((num, 1, 2, 1, *k.shape[1:]), dtype=k.dtype, device=k.device)
    every = places.expand(-1, -1, -1, _EVERY, -1, -1)
    numbers = torch.arange(num, device=q.device)
    apart = PagedRows(
        pool=every,
        unit=0,
        pages=numbers.int()[:, None],
        page_row=numbers,
        key_len=rows.key_len,
        num_single=num,
        tile_first=rows.tile_first,
        tile_len=rows.tile_len,
        tile_rows=rows.tile_rows,
    )
    turned = write_rows(q, k, v, apart, turn, 0)
    return places[:, 0, 0, 0], turned
