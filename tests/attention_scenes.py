"""One request's keys and values in a pool, to be attended to in any arrangement of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlt_core.contract.protocols import Attention, KVRows
from rlt_core.runtime.attention_torch import TorchAttention
from rlt_core.runtime.tiles import TILE

LENGTH = 300
# around the borders of pages and chunks
ALONE = (*range(18), 31, 32, 100, *range(124, 132), 199, 200, 255, 256, 257, 298, 299)


@dataclass(frozen=True)
class Text:
    """One request's rotated q, k and v at every position."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def random(
        cls,
        seed: int,
        heads: tuple[int, int, int],
        dtype: torch.dtype,
        device: str = "cpu",
        length: int = LENGTH,
    ) -> Text:
        """heads: query heads, KV heads, head size."""
        print("seed", seed)
        draw = torch.Generator().manual_seed(seed)
        parts = (
            torch.randn(length, n, heads[2], generator=draw) for n in (heads[0], heads[1], heads[1])
        )
        return cls(*(part.to(device, dtype) for part in parts))


class Memory:
    """A pool whose free pages hold NaN, and one request's shuffled pages."""

    def __init__(
        self,
        text: Text,
        page_size: int,
        seed: int,
        num_chunks: int = 3,
        attention: Attention | None = None,
    ) -> None:
        self.text, self.page_size, self.num_chunks = text, page_size, num_chunks
        self.attention = attention or TorchAttention()
        self.device = text.q.device
        groups, size = text.k.shape[1:]
        num_pages = num_chunks * 128 // page_size
        self.pool = torch.full(
            (num_pages + 5, 2, 2, page_size, groups, size),
            torch.nan,
            dtype=text.k.dtype,
            device=self.device,
        )
        self.pool[0] = 0  # the sentinel
        order = torch.randperm(num_pages + 4, generator=torch.Generator().manual_seed(seed)) + 1
        self.pages = order[:num_pages].to(self.device)

    def fill(self, stop: int) -> None:
        """What earlier launches wrote: positions 0 .. stop - 1."""
        where = torch.arange(stop, device=self.device)
        page, offset = self.pages[where // self.page_size], where % self.page_size
        self.pool[page, 1, 0, offset] = self.text.k[:stop]
        self.pool[page, 1, 1, offset] = self.text.v[:stop]

    def attend(self, tiles: Sequence[Sequence[int]], store: bool = True) -> dict[int, Tensor]:
        """One launch; a tile is a list of positions. Returns {position: [H, d]}."""
        positions = torch.tensor([p for tile in tiles for p in tile], device=self.device)
        rows = self.rows(tiles, positions, store)
        q, k, v = (part[positions] for part in (self.text.q, self.text.k, self.text.v))
        out = self.attention(q, k, v, rows, 0.25)
        return dict(zip(positions.tolist(), out, strict=True))

    def rows(self, tiles: Sequence[Sequence[int]], positions: Tensor, store: bool) -> KVRows:
        """Where rows of these tiles read and write."""
        lanes = max(TILE, *map(len, tiles))
        tile_rows = torch.full((len(tiles), lanes), len(positions))
        row_tile, row_lane = (torch.zeros(len(positions), dtype=torch.int64) for _ in range(2))
        row = 0
        for number, tile in enumerate(tiles):
            for lane in range(len(tile)):
                tile_rows[number, lane], row_tile[row], row_lane[row] = row, number, lane
                row += 1
        pages = self.pages.view(1, self.num_chunks, -1).expand(len(tiles), -1, -1)
        return KVRows(
            pool=self.pool,
            unit=1,
            write_page=self.pages[positions // self.page_size],
            write_offset=positions % self.page_size,
            tile_pages=pages,
            tile_rows=tile_rows.to(self.device),
            row_tile=row_tile.to(self.device),
            row_lane=row_lane.to(self.device),
            key_len=torch.nn.functional.pad(positions + 1, (0, 1)),
            store=store,
        )


def hide(text: Text, seed: int) -> Tensor:
    """bool [positions]: half of the keys, with 128 .. 255 (a whole chunk) and position 0."""
    hidden = torch.rand(384, generator=torch.Generator().manual_seed(seed)) < 0.5
    hidden[128:256] = True
    hidden[0] = True
    return hidden


class Hiding(Memory):
    """A pool in which hidden keys hold NaN, but for the ones that a tile writes itself."""

    def __init__(
        self,
        text: Text,
        hidden: Tensor,
        page_size: int,
        seed: int,
        attention: Attention | None = None,
    ) -> None:
        super().__init__(text, page_size, seed, attention=attention)
        self.hidden = hidden.to(self.device)

    def fill(self, stop: int) -> None:
        super().fill(stop)
        gone = self.hidden[:stop].nonzero()[:, 0]
        page, offset = self.pages[gone // self.page_size], gone % self.page_size
        self.pool[page, 1, :, offset] = torch.nan

    def rows(self, tiles: Sequence[Sequence[int]], positions: Tensor, store: bool) -> KVRows:
        """With half of the keys absent."""
        rows = super().rows(tiles, positions, store)
        masks = []
        for tile in tiles:
            mask = self.hidden.clone()
            mask[list(tile)] = False  # rows of one cell that still run have written the plane
            masks.append(mask.view(3, 128))
        return replace(rows, hidden=torch.stack(masks))


def dense(text: Text) -> Tensor:
    """Causal attention in float64 [L, H, d]."""
    repeat = text.q.shape[1] // text.k.shape[1]
    k, v = (x.double().repeat_interleave(repeat, dim=1) for x in (text.k, text.v))
    scores = torch.einsum("qhd,khd->hqk", text.q.double(), k) * 0.25
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=scores.device).triu(1)
    scores.masked_fill_(future, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def dense_row(text: Text, hidden: Tensor, position: int) -> Tensor:
    """One position over the keys that are not hidden, and its own, in float64 [H, d]."""
    repeat = text.q.shape[1] // text.k.shape[1]
    hidden = hidden.to(text.q.device)
    seen = (~hidden[: position + 1]).nonzero()[:, 0]
    seen = torch.cat((seen[seen < position], seen.new_tensor([position])))
    k, v = (part[seen].double().repeat_interleave(repeat, 1) for part in (text.k, text.v))
    weights = (torch.einsum("hd,nhd->hn", text.q[position].double(), k) * 0.25).softmax(-1)
    return torch.einsum("hn,nhd->hd", weights, v)


def in_tiles(start: int, stop: int, size: int = TILE) -> list[list[int]]:
    """Consecutive positions, `size` to a tile."""
    return [list(range(s, min(s + size, stop))) for s in range(start, stop, size)]


def equal(found: dict[int, Tensor], wanted: dict[int, Tensor]) -> bool:
    """Bits, the sign of zero included, at the positions that both have."""
    kind = {4: torch.int32, 2: torch.int16}
    both = found.keys() & wanted.keys()
    assert both
    return all(
        torch.equal(found[p].view(kind[found[p].itemsize]), wanted[p].view(kind[found[p].itemsize]))
        for p in both
    )
