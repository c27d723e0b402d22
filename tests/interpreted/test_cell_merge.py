"""Partial results of tiles that programs shared, put together, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlt_kernels.attention.cell_merge import LANES, merge_cells_kernel
from rlt_kernels.attention.paged import OPTIONS

HEADS, SIZE, CHUNKS, TILES = 3, 12, 20, 16
# rows of each tile and the keys of its last one: 20, 10, 9 and 8 chunks
LENGTHS, KEYS = (20, 1, 64, 5), (2500, 1153, 1152, 1024)


def fold(highest: Tensor, total: Tensor, mixed: Tensor) -> Tensor:
    """A row's result from its chunks ascending, in float64: [C], [C] and [C, D] -> [D]."""
    top = highest.max()
    weight = torch.exp2(highest.double() - top.double())
    return (weight @ mixed.double()) / (weight @ total.double())


# What a row sees nothing of is taken from itself, and then not used.
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")
@pytest.mark.parametrize("room", [8, 32, 44, 256])
def test_rows_of_shared_tiles_are_merged_and_others_left_alone(room: int, seed: int) -> None:
    """Tiles of few chunks have their results already; padding has no rows; rows that see nothing
    give zeros."""
    draw = torch.Generator().manual_seed(seed)
    first_row, num = 2, sum(LENGTHS)
    lengths = torch.tensor([*LENGTHS, 0, 0])
    first = first_row + lengths.cumsum(0) - lengths
    key_len = torch.zeros(first_row + num + 1, dtype=torch.int64)
    for start, length, keys in zip(first.tolist(), LENGTHS, KEYS, strict=False):
        key_len[start : start + length] = keys - torch.arange(length).flip(0)
    key_len[first_row + 4] = 0
    shape = (num, HEADS, CHUNKS)
    highest, total = torch.randn(shape, generator=draw), torch.rand(shape, generator=draw) + 0.5
    mixed = torch.randn(*shape, SIZE, generator=draw)
    # chunks that a row does not see
    hidden = torch.arange(CHUNKS) * 128 >= key_len[first_row : first_row + num, None]
    highest.masked_fill_(hidden[:, None], -torch.inf)
    out = torch.full((first_row + num, HEADS, SIZE), 7.0)
    merge_cells_kernel[(HEADS, len(lengths), 64 // LANES)](
        out, highest, total, mixed, key_len, first, lengths, first_row, len(lengths), CHUNKS,
        H=HEADS, ROWS=64, LANES=LANES, D=SIZE, DP=16, ROOM=room, TILES=TILES, PDL=False, **OPTIONS,
    )  # fmt: skip
    runs = room // len(LENGTHS)
    for start, length, keys in zip(first.tolist(), LENGTHS, KEYS, strict=False):
        chunks = -(-keys // 128)
        shared = runs >= 8 and chunks >= 9
        for row in range(start, start + length):
            for head in range(HEADS):
                parts = (part[row - first_row, head, :chunks] for part in (highest, total, mixed))
                right = torch.full((SIZE,), 7.0)
                if shared:
                    right = fold(*parts).float() if key_len[row] else torch.zeros(SIZE)
                torch.testing.assert_close(out[row, head], right, rtol=1e-5, atol=1e-5)
    assert bool((out[:first_row] == 7).all())
