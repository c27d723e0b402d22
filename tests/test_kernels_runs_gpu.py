"""The attention backend `triton` on a GPU: programs that share a tile of rows change no bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from rlt_core.contract.protocols import PagedRows
from tests.attention_scenes import Memory, Text
from tests.gpu_kit import DEVICE, needs_gpu, same

if TYPE_CHECKING:
    from rlt_kernels.attention.backend import TritonAttention

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]  # most of it is compiling
LENGTH, CHUNKS = 2600, 21
# Of one request, no more rows than are shared: many chunks and few, a single row.
CELLS = ((2576, 2600), (2290, 2306), (1792, 1793), (1650, 1664), (1525, 1530), (36, 40))
# Alone in front of them.
SINGLES = (2599, 700, 0)


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs_gpu()


def backend(programs: int) -> TritonAttention:
    """programs: as many as a launch may have."""
    from rlt_kernels.attention.backend import TritonAttention

    return TritonAttention(programs=programs)


def attend(
    attention: TritonAttention, text: Text, page_size: int, cells: list[tuple[int, int]], dead: int
) -> tuple[Tensor, Tensor]:
    """One launch of rows alone and of cells of one request whose other positions are stored, and
    padding behind them: (results, the pool). Every dead-th row does nothing."""
    memory = Memory(text, page_size, 1, num_chunks=CHUNKS)
    memory.fill(LENGTH)
    positions = torch.cat((torch.tensor(SINGLES), *(torch.arange(*cell) for cell in cells)))
    lengths = torch.tensor([stop - start for start, stop in cells])
    none = torch.zeros(9, dtype=torch.int64)
    keys = positions + 1
    keys[::dead] = 0
    rows = PagedRows(
        pool=memory.pool,
        unit=1,
        pages=memory.pages.int().view(1, -1),
        page_row=torch.zeros(len(positions), dtype=torch.int64, device=DEVICE),
        key_len=torch.nn.functional.pad(keys, (0, 1)).to(DEVICE),
        num_single=len(SINGLES),
        tile_first=torch.cat((len(SINGLES) + lengths.cumsum(0) - lengths, none)).to(DEVICE),
        tile_len=torch.cat((lengths, none)).to(DEVICE),
        tile_rows=64,
    )
    q, k, v = (part[positions.to(DEVICE)] for part in (text.q, text.k, text.v))
    out = attention.paged(q, k, v, rows, 0.25, None)
    return torch.where((keys > 0).view(-1, 1, 1).to(DEVICE), out, 0), memory.pool


@pytest.mark.parametrize("heads", [(16, 16, 128), (6, 2, 96), (4, 4, 64)])
@pytest.mark.parametrize("page_size", [64, 128])
def test_shared_tiles_have_the_bits_of_tiles_alone(
    page_size: int, heads: tuple[int, int, int], seed: int
) -> None:
    """One, two and more runs a tile, beside tiles that are too short to be shared; a tile alone;
    rows that do nothing."""
    text = Text.random(seed % 1000, heads, torch.bfloat16, DEVICE, LENGTH)
    for cells, dead in ((list(CELLS), 7), ([(2536, 2600)], 1000), (list(CELLS[1:3]), 5)):
        wanted, pool = attend(backend(1), text, page_size, cells, dead)
        for room in (8, 16, 48, 1 << 8):
            found, after = attend(backend(room * heads[0]), text, page_size, cells, dead)
            assert same(found, wanted), (cells, room)
            assert same(after, pool)
