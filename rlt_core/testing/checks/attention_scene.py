"""What an attention backend is shown in its checks: one request in a pool of NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.protocols import KVRows
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.tiles import Tiles
from rlt_core.testing.checks.subjects import SEED

LENGTH = 150  # two chunks of keys
UNIT = 1  # the layer inside the page; unit 0 must stay as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One request of 150 positions in two planes of a pool whose free pages hold NaN.

    keys [planes, 2, n, G, d]: what lies in the pool; own [2, n, G, d]: what the rows bring.
    """

    pool: Tensor
    pages: Tensor  # [planes, chunks, pages a chunk]
    keys: Tensor
    own: Tensor
    q: Tensor

    @property
    def page_size(self) -> int:
        return self.pool.shape[3]

    def rows(self, at: Tensor, plane: Tensor, tiles: Tiles, **fields: Any) -> KVRows:
        """Rows at positions `at` in their planes [R]."""
        chunks = self.pages.shape[1]
        per_plane = self.pages.flatten(1)
        return KVRows(
            pool=self.pool,
            unit=UNIT,
            write_page=per_plane[plane, at // self.page_size],
            write_offset=at % self.page_size,
            tile_pages=per_plane[plane[tiles.first]].view(len(tiles.first), chunks, -1),
            tile_rows=tiles.rows,
            row_tile=tiles.row_tile,
            row_lane=tiles.row_lane,
            key_len=torch.nn.functional.pad(at + 1, (0, 1)),
            **fields,
        )

    def reference(self, at: Tensor, plane: Tensor, *, whole: bool, hidden: Any = None) -> Tensor:
        """Plain softmax in float64. `whole`: every earlier position holds the rows' own values."""
        found = []
        for position, p in zip(at.tolist(), plane.tolist(), strict=True):
            k, v = (self.own if whole else self.keys[p])[:, : position + 1].double().clone()
            k[position], v[position] = self.own[:, position].double()
            q = self.q[position].double().unflatten(0, (k.shape[1], -1))
            scores = torch.einsum("ghd,ngd->ghn", q, k) * q.shape[-1] ** -0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden[: position + 1], -torch.inf)
            mixed = torch.einsum("ghn,ngd->ghd", scores.softmax(-1), v)
            found.append(mixed.flatten(0, 1))
        return torch.stack(found).float()


def make_scene(heads: int, groups: int, size: int, page_size: int, device: str) -> Scene:
    """Drawn from the checks' seed."""
    draw = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    per_chunk, chunks, planes = CHUNK_KEYS // page_size, -(-LENGTH // CHUNK_KEYS), 2
    used = -(-LENGTH // page_size)
    count = planes * used
    pool = torch.full((1 + count, 2, 2, page_size, groups, size), torch.nan, device=device)
    pool[0] = 0.0
    pages = torch.zeros((planes, chunks * per_chunk), dtype=torch.int64, device=device)
    order = torch.randperm(count, generator=draw).to(device) + 1
    pages[:, :used] = order.view(planes, used)
    keys, at = random(planes, 2, LENGTH, groups, size), torch.arange(LENGTH, device=device)
    for plane in range(planes):
        where = (pages[plane, at // page_size], UNIT, slice(None), at % page_size)
        pool[where] = keys[plane].transpose(0, 1)
    return Scene(
        pool=pool,
        pages=pages.view(planes, chunks, per_chunk),
        keys=keys,
        own=random(2, LENGTH, groups, size),
        q=random(LENGTH, heads, size),
    )
