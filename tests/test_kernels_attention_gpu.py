"""The attention backend `triton` on a GPU: decoding, prompts and splits give the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from rlt_core.contract import RopeSpec
from rlt_core.contract.protocols import PagedRows, Turn
from rlt_core.runtime.rope import RopeTable, apply_rope
from tests.attention_scenes import (
    ALONE,
    LENGTH,
    Hiding,
    Memory,
    Text,
    dense,
    dense_row,
    equal,
    hide,
    in_tiles,
)
from tests.gpu_kit import DEVICE, DTYPES, needs_gpu, same

if TYPE_CHECKING:
    from rlt_kernels.attention.backend import TritonAttention

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]  # most of it is compiling
# query heads, KV heads, head size
HEADS = ((3, 3, 10), (4, 2, 12), (6, 1, 96), (12, 2, 128), (2, 2, 128))
CASES = [
    *((heads, torch.bfloat16) for heads in HEADS),
    *((heads, dtype) for heads in HEADS[1:4:2] for dtype in (torch.float16, torch.float32)),
]
SPLITS = (1, 2, 8)
CHUNKS = 8
# Scores reach 16, whose last bit is 1e-6; TF32 would give 1e-3.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs_gpu()


def backend(programs: int = 1) -> TritonAttention:
    """programs: as many as a launch may have, over which its rows are split."""
    from rlt_kernels.attention.backend import TritonAttention

    return TritonAttention(programs=programs)


def decoded(text: Text, page_size: int, splits: int) -> dict[int, Tensor]:
    """Positions alone, each when only the earlier ones are stored."""
    attention = backend(splits * text.k.shape[1])
    memory = Memory(text, page_size, 0, num_chunks=CHUNKS, attention=attention)
    out: dict[int, Tensor] = {}
    for position in ALONE:
        memory.fill(position)
        out |= memory.attend([[position]])
    return out


@pytest.mark.parametrize(("heads", "dtype"), CASES)
def test_every_arrangement_gives_the_same_bits(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Page sizes, splits over programs, prompt tiles of 3 to 64 rows, rows beside others; and the
    values are right."""
    text = Text.random(1, heads, dtype, DEVICE)
    whole = Memory(text, 16, 1, attention=backend()).attend(in_tiles(0, LENGTH))
    error = (torch.stack([whole[p] for p in range(LENGTH)]) - dense(text)).abs().max()
    assert error < ERROR[dtype]
    for page_size, splits in ((4, 1), (16, 2), (16, 8), (64, 1), (64, 2), (128, 1), (128, 8)):
        assert equal(decoded(text, page_size, splits), whole), (page_size, splits)
    for page_size, rows in ((4, 3), (16, 64), (64, 64), (128, 30), (128, 50), (128, 100)):
        memory = Memory(text, page_size, 2, attention=backend())
        assert equal(memory.attend(in_tiles(0, LENGTH, rows)), whole), (page_size, rows)
    memory = Memory(text, 16, 3, num_chunks=CHUNKS, attention=backend(1 << 20))
    memory.fill(LENGTH)
    assert equal(memory.attend([[p] for p in ALONE]), whole)
    memory = Memory(text, 16, 4, attention=backend())
    memory.fill(200)
    assert equal(memory.attend([[199], *in_tiles(200, 259), [7], [128]]), whole)


@pytest.mark.parametrize("size", [96, 128])
@pytest.mark.parametrize("page_size", [64, 128])
def test_many_rows_beside_idle_ones_give_the_same_bits(
    page_size: int, size: int, seed: int
) -> None:
    """Copies that start before the kernel in front has ended, of rows that do nothing too (one in
    three, the first and the last among them); programs that share a row."""
    text = Text.random(seed % 1000, (16, 16, size), torch.bfloat16, DEVICE)
    turn = RopeTable.build(RopeSpec(theta=10000.0, dim=size), LENGTH, DEVICE, torch.bfloat16).turn
    prompt = Memory(text, page_size, 1, num_chunks=CHUNKS)
    whole = _paged(backend(), text, prompt, range(LENGTH), alone=False, turn=turn)
    draw = torch.Generator().manual_seed(seed)
    positions = torch.randperm(LENGTH, generator=draw)[:100]
    live = torch.arange(100) % 3 > 0
    live[-1] = False
    before = prompt.pool.clone()
    for splits in (1, 1 << 14):
        found = _paged(
            backend(splits), text, prompt, positions.tolist(), alone=True, turn=turn, live=live
        )
        assert same(found[live], whole[positions[live]])
        assert same(prompt.pool, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", SPLITS)
def test_without_store_the_pool_keeps_its_bits(splits: int, dtype: torch.dtype) -> None:
    """A guess must not leave KV behind, yet see its own."""
    text = Text.random(2, (4, 2, 12), dtype, DEVICE)
    wanted = decoded(text, 16, 1)
    for position in (0, 16, 127, 128, 299):
        attention = backend(splits * 2)
        memory = Memory(text, 16, position, num_chunks=CHUNKS, attention=attention)
        memory.fill(position)
        before = memory.pool.clone().view(torch.uint8)
        assert equal(memory.attend([[position]], store=False), wanted)
        assert torch.equal(memory.pool.view(torch.uint8), before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_keys_weigh_nothing(dtype: torch.dtype, seed: int) -> None:
    """Their memory holds NaN; rows alone and rows of a cell agree to the bit."""
    text = Text.random(seed % 1000, (4, 2, 12), dtype, DEVICE)
    hidden = hide(text, seed)
    hidden[256:264] = False
    wanted: dict[int, Tensor] = {}
    for position in range(256, 264):
        memory = Hiding(text, hidden, 16, 2, attention=backend(1 << 20))
        memory.fill(position)
        wanted |= memory.attend([[position]])
        right = dense_row(text, hidden, position)
        assert (wanted[position] - right).abs().max() < ERROR[dtype]
    for page_size in (4, 128):
        memory = Hiding(text, hidden, page_size, 3, attention=backend())
        memory.fill(256)
        assert equal(memory.attend(in_tiles(256, 264)), wanted)


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(theta=10000.0, dim=96),
        RopeSpec(theta=10000.0, dim=128),
        RopeSpec(theta=100.0, dim=64, interleaved=True),
    ],
    ids=["halves", "whole", "pairs"],
)
@pytest.mark.parametrize(
    ("dtype", "page_size"),
    [(dtype, 16) for dtype in DTYPES]
    + [(dtype, size) for dtype in DTYPES[:2] for size in (64, 128)],
)
def test_turning_inside_gives_the_same_bits(
    page_size: int, spec: RopeSpec, dtype: torch.dtype
) -> None:
    """Three kernels turn keys, the prompt's and the decode rows': a multiply and add that one of
    them fuses moves the last bit, in the pool and in all later results. Where none is fused, the
    bits are plain torch's."""
    text = Text.random(5, (6, 1, 128 if spec.dim == 128 else 96), dtype, DEVICE)
    table = RopeTable.build(spec, LENGTH, DEVICE, dtype)
    prompt = Memory(text, page_size, 1, num_chunks=CHUNKS)
    whole = _paged(backend(), text, prompt, range(LENGTH), alone=False, turn=table.turn)
    pool = prompt.pool[prompt.pages]
    if not spec.interleaved:
        plain = apply_rope(text.k, *table.at(torch.arange(LENGTH, device=DEVICE)), spec)
        assert same(pool[:, 1, 0].flatten(0, 1)[:LENGTH], plain)
    for splits in SPLITS:
        memory = Memory(text, page_size, 1, num_chunks=CHUNKS)
        memory.pool[memory.pages] = pool
        for position in ALONE:
            own = (memory.pages[position // page_size], 1, slice(None), position % page_size)
            kept = memory.pool[own].clone()
            memory.pool[own] = torch.nan
            out = _paged(backend(splits), text, memory, [position], alone=True, turn=table.turn)
            assert same(out[0], whole[position]), (position, splits)
            assert same(memory.pool[own], kept), (position, splits)


def _paged(
    attention: TritonAttention,
    text: Text,
    memory: Memory,
    wanted: range | list[int],
    *,
    alone: bool,
    turn: Turn,
    live: Tensor | None = None,
) -> Tensor:
    """One launch of positions, alone or as one cell in tiles of 64; live bool [count]: which rows
    do anything."""
    positions = torch.tensor(list(wanted), device=DEVICE)
    count = len(positions)
    first = torch.arange(0, 0 if alone else count, 64, device=DEVICE)
    keys = positions + 1
    if live is not None:
        keys = torch.where(live.to(DEVICE), keys, 0)
    rows = PagedRows(
        pool=memory.pool,
        unit=1,
        pages=memory.pages.int().view(1, -1),
        page_row=torch.zeros(count, dtype=torch.int64, device=DEVICE),
        key_len=torch.nn.functional.pad(keys, (0, 1)),
        num_single=count if alone else 0,
        tile_first=first,
        tile_len=(count - first).clamp(max=64),
        tile_rows=64,
    )
    q, k, v = (part[positions] for part in (text.q, text.k, text.v))
    first_out = attention.paged(q, k, v, rows, 0.25, turn)
    # Only later launches with the same rows start before the kernel in front has ended.
    again = attention.paged(q, k, v, rows, 0.25, turn)
    there = rows.key_len[:count] > 0
    assert same(again[there], first_out[there])
    return again
