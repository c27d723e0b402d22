"""The attention backend `triton` on the scenes of tests/test_attention.py, against float64.

Bits cannot be compared here: numpy's products change with their shape.
"""

from __future__ import annotations

import pytest
import torch

from rlt_core.contract import RopeSpec
from rlt_core.contract.protocols import PagedRows
from rlt_core.runtime.rope import RopeTable, prepare_qk
from rlt_kernels.attention import backend as backends
from rlt_kernels.attention.backend import TritonAttention
from rlt_kernels.attention.blocks import Blocks
from tests.attention_scenes import Hiding, Memory, Text, dense, dense_row, hide, in_tiles

# numpy computes both sides of a `where`: -inf - -inf on the one that is not taken
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# query heads, KV heads, head size
HEADS = ((2, 1, 12), (1, 1, 16), (3, 3, 10))
# Programs to fill: one keeps a row in one program, the other spreads it over as many as it may.
ALONE, SPREAD = 1, 1 << 20


def backend(programs: int = ALONE) -> TritonAttention:
    return TritonAttention(programs=programs)


def close(found: dict[int, torch.Tensor], wanted: torch.Tensor, error: float = 2e-6) -> None:
    for position, value in found.items():
        torch.testing.assert_close(value.double(), wanted[position], rtol=0, atol=error)


@pytest.mark.parametrize("heads", HEADS[::2])
def test_prompt_tiles(heads: tuple[int, int, int]) -> None:
    """Grouped heads, the mask inside a tile, chunk merging, head sizes that are padded."""
    text = Text.random(1, heads, torch.float32)
    memory = Memory(text, 16, 1, attention=backend())
    memory.fill(120)
    close(memory.attend(in_tiles(120, 138)), dense(text))
    memory.fill(253)
    close(memory.attend(in_tiles(253, 260, 4)), dense(text))


@pytest.mark.parametrize("programs", [ALONE, SPREAD])
@pytest.mark.parametrize(("page_size", "heads"), [(4, HEADS[0]), (128, HEADS[2])])
def test_single_rows(page_size: int, heads: tuple[int, int, int], programs: int) -> None:
    """One row over one program and over many; the own key is not in the pool yet."""
    text = Text.random(2, heads, torch.float32)
    for position in (0, 127, 128, 299):
        memory = Memory(text, page_size, 2, attention=backend(programs))
        memory.fill(position)
        close(memory.attend([[position]]), dense(text))
        written = memory.pool[memory.pages[position // page_size], 1, :, position % page_size]
        assert torch.equal(written, torch.stack((text.k[position], text.v[position])))


def test_float16() -> None:
    """The weights are rounded to the dtype before the second product, and nothing else is."""
    text = Text.random(3, HEADS[0], torch.float16)
    memory = Memory(text, 16, 3, attention=backend())
    memory.fill(140)
    close(memory.attend([[140]]), dense(text), 2e-3)
    close(memory.attend(in_tiles(140, 144)), dense(text), 2e-3)


@pytest.mark.parametrize("programs", [ALONE, SPREAD])
def test_without_store_the_pool_keeps_its_bits(programs: int) -> None:
    """A guess must not leave KV behind, yet see its own."""
    text = Text.random(4, HEADS[0], torch.float32)
    memory = Memory(text, 16, 4, attention=backend(programs))
    memory.fill(200)
    before = memory.pool.clone().view(torch.uint8)
    close(memory.attend([[200]], store=False), dense(text))
    assert torch.equal(memory.pool.view(torch.uint8), before)


@pytest.mark.parametrize("programs", [ALONE, SPREAD])
def test_hidden_keys_weigh_nothing(programs: int, seed: int) -> None:
    """Their memory holds NaN; a whole chunk, and the very first key, may be hidden."""
    text = Text.random(seed % 1000, HEADS[0], torch.float32)
    hidden = hide(text, seed)
    for position in (1, 200, 299):
        for cover in (hidden, torch.ones_like(hidden)):
            memory = Hiding(text, cover, 16, 1, attention=backend(programs))
            memory.fill(position)
            found = memory.attend([[position]])[position].double()
            wanted = dense_row(text, cover, position)
            torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("tiles", [[[0], [1]], [[0, 1]]])
def test_rows_that_see_nothing_do_nothing(tiles: list[list[int]]) -> None:
    """A row without a request (key_len 0) must neither write a page nor breed NaN elsewhere."""
    text = Text.random(6, HEADS[1], torch.float32)
    memory = Memory(text, 16, 6, attention=backend())
    rows = memory.rows(tiles, torch.tensor([0, 1]), True)
    rows.key_len[0] = 0
    before = memory.pool.clone()
    memory.attention(text.q[:2], text.k[:2], text.v[:2], rows, 0.25)
    page = memory.pages[0]
    assert memory.pool[page, 1, 0, 0].isnan().all()
    assert torch.equal(memory.pool[page, 1, 0, 1], text.k[1])
    others = [p for p in range(len(before)) if p != page]
    torch.testing.assert_close(memory.pool[others], before[others], equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    "spec",
    [RopeSpec(theta=10000.0, dim=12), RopeSpec(theta=100.0, dim=8, interleaved=True)],
    ids=["halves", "pairs"],
)
def test_it_turns_and_writes_by_itself(spec: RopeSpec) -> None:
    """paged(): decode rows and a prompt tile in one launch, unturned, from a page table; the keys
    in the pool are turned, a part of the head may stay as it is."""
    plain = Text.random(7, HEADS[0], torch.float32)
    table = RopeTable.build(spec, 300, "cpu", torch.float32)
    q, k = prepare_qk(plain.q, plain.k, torch.arange(300), table=table)
    text = Text(q, k, plain.v)
    attention = backend()
    memory = Memory(text, 16, 7, attention=attention)
    memory.fill(180)
    positions = torch.tensor([150, *range(180, 190)])  # a decode row, then a cell of ten
    rows = PagedRows(
        pool=memory.pool,
        unit=1,
        pages=memory.pages.int().view(1, -1),
        page_row=torch.zeros(11, dtype=torch.int64),
        key_len=torch.nn.functional.pad(positions + 1, (0, 1)),
        num_single=1,
        tile_first=torch.tensor([1, 11]),
        tile_len=torch.tensor([10, 0]),
        tile_rows=16,
    )
    here = (plain.q[positions], plain.k[positions], plain.v[positions])
    found = attention.paged(here[0], here[1], here[2], rows, 0.25, table.turn)
    close(dict(zip(positions.tolist(), found, strict=True)), dense(text), 3e-6)
    page, offset = memory.pages[positions // 16], positions % 16
    torch.testing.assert_close(memory.pool[page, 1, 0, offset], k[positions], rtol=0, atol=1e-6)


def test_page_tables_are_not_read_before_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards a kernel that reads which page tables its rows have before the kernel in front has
    ended, where that one may have written them: in the first call with these rows."""
    asked = []

    class Ring:
        def __getitem__(self, grid: object) -> Ring:
            return self

        def __call__(self, *args: object, **options: object) -> None:
            asked.append(bool(options.get("launch_pdl")))

    for name in ("pays", "takes_blocks", "can_overlap"):
        monkeypatch.setattr(backends, name, lambda *args: True)
    monkeypatch.setattr(backends, "ring_kernel", Ring)
    monkeypatch.setattr(Blocks, "of", lambda *args: None)
    attention, text = backend(), Text.random(5, (2, 2, 16), torch.float32)
    memory = Memory(text, 64, 1)
    for _ in range(2):
        rows = PagedRows(
            pool=memory.pool,
            unit=1,
            pages=memory.pages.int().view(1, -1),
            page_row=torch.zeros(2, dtype=torch.int64),
            key_len=torch.tensor([8, 9, 0]),
            num_single=2,
            tile_first=torch.zeros(0, dtype=torch.int64),
            tile_len=torch.zeros(0, dtype=torch.int64),
            tile_rows=64,
        )
        for _ in range(3):  # layers
            attention.paged(text.q[:2], text.k[:2], text.v[:2], rows, 0.25, None)
    assert asked == [False, True, True] * 2


def test_what_does_not_fit_is_named() -> None:
    """A kernel would read past the end without a word."""
    text = Text.random(8, (3, 3, 10), torch.float32)
    memory = Memory(text, 16, 8, attention=backend())
    rows = memory.rows([[0]], torch.tensor([0]), True)
    with pytest.raises(ValueError, match="attention"):
        memory.attention(text.q[:1, :2], text.k[:1], text.v[:1], rows, 0.25)
    with pytest.raises(ValueError, match="for a pool of"):
        memory.attention(text.q[:1, :2], text.k[:1, :2], text.v[:1, :2], rows, 0.25)


def test_rows_of_one_packed_product_without_a_turn() -> None:
    """A model without rotary embeddings that splits one product into q, k and v did not start."""
    text = Text.random(9, (2, 2, 16), torch.float32)
    packed = torch.cat((text.q, text.k, text.v), 1)[:3]
    parts = packed.split((2, 2, 2), 1)
    for single, positions in ((True, [[0], [1], [2]]), (False, [[0, 1, 2]])):
        found = []
        for q, k, v in (parts, [part.contiguous() for part in parts]):
            memory = Memory(text, 64, 9)
            rows = PagedRows(
                pool=memory.pool,
                unit=1,
                pages=memory.pages.int().view(1, -1),
                page_row=torch.zeros(3, dtype=torch.int64),
                key_len=torch.tensor([1, 2, 3, 0]),
                num_single=3 if single else 0,
                tile_first=torch.zeros(0 if single else 1, dtype=torch.int64),
                tile_len=torch.full((0 if single else 1,), 3),
                tile_rows=16,
            )
            found.append(backend().paged(q, k, v, rows, 0.25, None))
        assert torch.equal(*found), positions
