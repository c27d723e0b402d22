"""Reference attention: right against float64, and the same bits in every arrangement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlt_core.runtime.attention_torch import TorchAttention
from rlt_core.runtime.tiles import TILE
from rlt_core.testing.checks.host_reads import LightMode
from tests.attention_scenes import ALONE, LENGTH, Memory, Text, dense, equal, in_tiles
from tests.selection import mostly_slow

DTYPES = (torch.float32, torch.bfloat16)
# query heads, KV heads, head size
HEADS = ((4, 4, 16), (4, 2, 12), (6, 1, 32), (1, 1, 8), (3, 3, 10))


class Names(LightMode):
    """The names of all operators called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def decoded(text: Text) -> dict[int, Tensor]:
    """Positions alone, each when only the earlier ones are stored."""
    memory = Memory(text, 16, 0)
    out: dict[int, Tensor] = {}
    for position in ALONE:
        memory.fill(position)
        out |= memory.attend([[position]])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_agrees_with_float64(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Grouped heads in blocks (head j reads KV head j div rep), mask, chunk merging."""
    text = Text.random(1, heads, dtype)
    found = Memory(text, 16, 1).attend(in_tiles(0, LENGTH))
    error = (torch.stack([found[p] for p in range(LENGTH)]) - dense(text)).abs().max()
    assert error < (2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", mostly_slow(DTYPES, DTYPES[1]))
@pytest.mark.parametrize("heads", mostly_slow([(heads,) for heads in HEADS], (HEADS[1],)))
def test_every_arrangement_gives_the_same_bits(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """SDPA, or any reduction over a variable length, differs between prompt and decode."""
    text = Text.random(2, heads, dtype)
    wanted = decoded(text)
    whole = Memory(text, 16, 1).attend(in_tiles(0, LENGTH))
    assert equal(whole, wanted)
    for page_size in (4, 128):
        assert equal(Memory(text, page_size, 2).attend(in_tiles(0, LENGTH)), whole), page_size
    assert equal(Memory(text, 16, 5, num_chunks=5).attend(in_tiles(0, LENGTH)), whole)
    assert equal(_in_chunks(text, 7), whole)
    assert equal(_in_chunks(text, 64, shift=3), whole)
    assert equal(Memory(text, 16, 6).attend(in_tiles(0, LENGTH, 3)), whole)
    torch.set_num_threads(2)
    assert equal(Memory(text, 16, 7).attend(in_tiles(0, LENGTH)), whole)
    assert equal(_in_chunks(text, 128), whole)


def _in_chunks(text: Text, size: int, shift: int = 0) -> dict[int, Tensor]:
    """Prompt chunks of `size`, tiles of at most 16 rows that start `shift` rows early."""
    memory = Memory(text, 16, 9)
    out: dict[int, Tensor] = {}
    for start in range(0, LENGTH, size):
        stop = min(start + size, LENGTH)
        first = min(start + (shift or TILE), stop)
        out |= memory.attend([list(range(start, first)), *in_tiles(first, stop)])
    return out


@pytest.mark.parametrize("kept", [1, 8])
def test_the_layers_of_a_launch_share_what_is_kept(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where keys lie is made for the first layer: the second must read its own keys with it, also
    in a context so long that not all chunks are kept."""
    texts = [Text.random(seed, (4, 2, 16), torch.float32) for seed in (5, 6)]
    positions, tiles = torch.arange(LENGTH), in_tiles(0, LENGTH)
    wanted = [Memory(text, 16, 2).attend(tiles) for text in texts]
    monkeypatch.setattr("rlt_core.runtime.attention_torch._MOST_KEPT", kept)
    memory = Memory(texts[0], 16, 1)
    rows = memory.rows(tiles, positions, True)
    for unit, text in enumerate(texts):
        here = replace(rows, unit=unit)
        found = memory.attention(text.q, text.k, text.v, here, 0.25)
        assert equal(dict(enumerate(found)), wanted[unit]), unit


def test_prompt_and_decode_rows_share_a_launch() -> None:
    """A decode row's bits with a prompt beside it, and the other way round."""
    text = Text.random(3, (4, 2, 16), torch.float32)
    wanted = decoded(text)
    memory = Memory(text, 16, 3)
    memory.fill(200)
    found = memory.attend([[199], [100], *in_tiles(200, 259), [7], [31], [128], [127]])
    assert found.keys() & wanted.keys() >= {199, 100, 7, 31, 128, 127, 200, 255, 256, 257}
    assert equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_store_the_pool_keeps_its_bits(dtype: torch.dtype) -> None:
    """A guess must not leave KV behind, yet see its own; NaN bits count as well."""
    text = Text.random(4, (4, 2, 12), dtype)
    wanted = decoded(text)
    for position in (0, 16, 127, 128, 299):
        memory = Memory(text, 4, position)
        memory.fill(position)
        before = memory.pool.clone().view(torch.uint8)
        assert equal(memory.attend([[position]], store=False), wanted)
        assert torch.equal(memory.pool.view(torch.uint8), before)
        memory.attend([[position]])
        assert not torch.equal(memory.pool.view(torch.uint8), before)


def test_a_broken_request_stays_alone() -> None:
    """NaN or infinity in one tile must leave the bits of the tiles beside it (CASES A29)."""
    text = Text.random(5, (2, 2, 16), torch.float32)
    wanted = decoded(text)
    broken = Text(text.q.clone(), text.k, text.v)
    broken.q[40], broken.q[90, 0, 3] = torch.nan, torch.inf
    memory = Memory(broken, 16, 4)
    memory.fill(130)
    found = memory.attend([[40], [31], [90], [128]])
    assert found[40].isnan().all()
    assert equal({p: found[p] for p in (31, 128)}, wanted)


def test_later_rows_of_a_tile_have_no_weight() -> None:
    """A tiny weight in place of none would let a later row's large value through."""
    text = Text.random(8, (2, 2, 16), torch.float32)
    wanted = Memory(text, 16, 8).attend(in_tiles(0, 4))
    text.v[2:] = 1e30
    found = Memory(text, 16, 8).attend(in_tiles(0, 4))
    assert equal({p: found[p] for p in (0, 1)}, wanted)


def test_rows_that_see_nothing_are_zero() -> None:
    """A row without a request (key_len 0) must not breed NaN from poisoned pages."""
    text = Text.random(6, (2, 1, 16), torch.float32)
    memory = Memory(text, 16, 6)
    rows = memory.rows([[0], [1]], torch.tensor([0, 1]), True)
    rows.key_len.zero_()
    out = TorchAttention()(text.q[:2], text.k[:2], text.v[:2], rows, 0.25)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.slow
def test_operator_count_is_the_same_for_any_rows() -> None:
    """No Python per row or tile, no host read, no data-dependent shape."""
    text = Text.random(7, (4, 4, 16), torch.float32)
    seen = []
    for tiles in ([[0]], in_tiles(0, 8), in_tiles(0, 256), [[p] for p in range(40)]):
        memory, mode = Memory(text, 16, 7), Names()
        positions = torch.tensor([p for tile in tiles for p in tile])
        rows = memory.rows(tiles, positions, True)
        parts = (text.q[positions], text.k[positions], text.v[positions])
        with mode:
            TorchAttention()(*parts, rows, 0.25)
        seen.append(mode.names)
        for word in ("_local_scalar_dense", "nonzero", "masked_select"):
            assert not any(word in name for name in mode.names)
    assert all(names == seen[0] for names in seen)
