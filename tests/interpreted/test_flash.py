"""`flash` over a stand-in, its write under the interpreter: what the package gets, and the answers.

Head size 16, so that either package's limits hold; float16, as the packages take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlt_core.contract import RopeSpec
from rlt_core.contract.protocols import PagedRows
from rlt_core.runtime.rope import RopeTable, prepare_qk
from rlt_kernels.attention.flash import FlashAttention
from tests.attention_scenes import LENGTH, Memory, Text, dense
from tests.flash_stand_in import CALLS, install

HEADS = (4, 2, 16)
FOUR, TWO = ("four", "4.0.0b3"), ("two", "2.8.3")
ERROR = 4e-3


@pytest.fixture(params=[FOUR, TWO], ids=["four", "two"])
def flash(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FlashAttention]:
    """The backend over either stand-in."""
    with install(tmp_path / "site", request.param):
        yield FlashAttention()


class _Scene:
    """One request in pages of 256, which both take; rows by position, with rope or without."""

    def __init__(self, seed: int, spec: RopeSpec | None = None, page_size: int = 256) -> None:
        self.plain = Text.random(seed, HEADS, torch.float16)
        table = spec and RopeTable.build(spec, LENGTH, "cpu", torch.float16)
        self.turn = table.turn if table else None
        q, k = self.plain.q, self.plain.k
        if table:
            q, k = prepare_qk(q, k, torch.arange(LENGTH), table=table)
        self.text = Text(q, k, self.plain.v)
        # Memory lays out 384 positions; four chunks are two pages of 256.
        self.memory = Memory(self.text, page_size, seed, num_chunks=4)

    def rows(self, positions: list[int], num_single: int, tiles: list[int], **fields: Any) -> Any:
        """Rows at `positions`, the first of them alone, the others in tiles of these lengths."""
        at, lengths = torch.tensor(positions), torch.tensor(tiles, dtype=torch.int64)
        return PagedRows(
            pool=self.memory.pool,
            unit=1,
            pages=self.memory.pages.int().view(1, -1),
            page_row=torch.zeros(len(at), dtype=torch.int64),
            key_len=torch.nn.functional.pad(at + 1, (0, 1)),
            num_single=num_single,
            tile_first=num_single + lengths.cumsum(0) - lengths,
            tile_len=lengths,
            tile_rows=256,
            **fields,
        )

    def attend(self, flash: FlashAttention, rows: PagedRows, positions: list[int]) -> torch.Tensor:
        """What comes out for the rows."""
        here = [part[positions] for part in (self.plain.q, self.plain.k, self.plain.v)]
        return flash.paged(here[0], here[1], here[2], rows, 0.25, self.turn)

    def check(self, found: torch.Tensor, positions: list[int]) -> None:
        """Against plain softmax in float64."""
        wanted = dense(self.text)[positions]
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=ERROR)


@pytest.mark.parametrize(
    "spec",
    [None, RopeSpec(theta=100.0, dim=16), RopeSpec(theta=100.0, dim=8, interleaved=True)],
    ids=["plain", "halves", "pairs"],
)
def test_rows_alone_and_tiles(flash: FlashAttention, spec: RopeSpec | None) -> None:
    """Decode rows and two tiles of a cell, turned and written; a padding tile; the views that the
    package gets are of the pool, as it lies there."""
    scene = _Scene(1, spec)
    scene.memory.fill(250)
    positions = [0, 17, 249, *range(250, 270)]
    rows = scene.rows(positions, 3, [12, 8, 0])
    scene.check(scene.attend(flash, rows, positions), positions)
    (_, alone, keys), (_, tiles, _) = CALLS
    assert (alone, tiles) == ((3, 4, 16), (20, 4, 16))
    assert keys.untyped_storage().data_ptr() == scene.memory.pool.untyped_storage().data_ptr()
    at = torch.arange(250, 270)
    written = scene.memory.pool[scene.memory.pages[at // 256], 1, 0, at % 256]
    torch.testing.assert_close(written, scene.text.k[at], rtol=0, atol=2e-3)


def test_a_tile_with_rows_that_do_nothing(flash: FlashAttention) -> None:
    """Rows that left stand in a tile, also at its end: the others see what lies before them."""
    scene = _Scene(2)
    scene.memory.fill(60)
    positions = list(range(50, 60))
    rows = scene.rows(positions, 0, [10])
    for gone in ([3, 4], [8, 9], [0, 9]):
        left = [i for i in range(10) if i not in gone]
        lengths = rows.key_len.clone()
        lengths[gone] = 0
        found = scene.attend(flash, replace(rows, key_len=lengths, kept={}), positions)
        scene.check(found[left], [positions[i] for i in left])


def test_without_store_the_pool_keeps_its_bits(flash: FlashAttention) -> None:
    """A guess must not leave KV behind, yet see its own key; the first position sees no other."""
    scene = _Scene(3, RopeSpec(theta=100.0, dim=16))
    scene.memory.fill(270)
    before = scene.memory.pool.clone().view(torch.uint8)
    positions = [0, 1, 255, 256, 270]
    rows = scene.rows(positions, 5, [], store=False)
    scene.check(scene.attend(flash, rows, positions), positions)
    assert torch.equal(scene.memory.pool.view(torch.uint8), before)


def test_a_row_that_does_nothing_harms_nobody(flash: FlashAttention) -> None:
    """A padded row's slot has pages of nobody and no length."""
    scene = _Scene(4)
    scene.memory.fill(8)
    for store in (True, False):
        rows = scene.rows([3, 8], 2, [], store=store)
        rows.key_len[0] = 0
        before = scene.memory.pool[scene.memory.pages[0], 1, :, 3].clone()
        found = scene.attend(flash, rows, [3, 8])
        scene.check(found[1:], [8])
        assert torch.equal(scene.memory.pool[scene.memory.pages[0], 1, :, 3], before)


def test_the_layers_of_a_launch_share_what_was_made(flash: FlashAttention) -> None:
    """Sums of lengths and page tables made again in every layer: four launches more in each."""
    scene = _Scene(5)
    scene.memory.fill(9)
    rows = scene.rows([9], 1, [])
    scene.attend(flash, rows, [9])
    made = dict(rows.kept)
    assert made
    scene.attend(flash, replace(rows, unit=0), [9])
    assert all(rows.kept[name] is value for name, value in made.items())


def test_what_it_cannot_is_refused(flash: FlashAttention) -> None:
    """Hidden keys would be seen, without a word."""
    scene = _Scene(6)
    rows = scene.rows([0], 1, [])
    hidden = torch.zeros(1, 512, dtype=torch.bool)
    with pytest.raises(ValueError, match="flash cannot hide keys"):
        scene.attend(flash, replace(rows, hidden=hidden), [0])
