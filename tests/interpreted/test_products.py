"""The products against float64 and against plain torch, for every kind of tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlt_core.runtime import ops_torch
from rlt_kernels.products import linear, linear_silu_mul, make_launch
from rlt_kernels.tiles import Tile

DTYPES = (torch.float32, torch.float16)
# rows, in, out
SHAPES = ((1, 32, 37), (3, 100, 64), (17, 64, 1), (40, 48, 66))
ROWS = Tile(kind="rows", bm=16, bn=32, bk=16, stages=2, warps=4, pdl=False)
MANY = Tile(kind="many", bm=32, bn=32, bk=16, stages=2, warps=4, group=2, pdl=False)
TILES = (
    ROWS,
    replace(ROWS, swap=True, peel=16),
    replace(ROWS, bm=32, bk=32, peel=32),
    MANY,
    replace(MANY, bm=16, swap=True, special=True),
    replace(MANY, apart=True),
)


def random(seed: int, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers times `scale`."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=draw) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_any_shape(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    """Edges of tiles: rows, columns and an inner size that no tile divides; the bias at its column;
    float32 that became TF32 would miss by 1e-3."""
    rows, size, outputs = shape
    x = random(seed, rows, size, dtype=dtype)
    weight = random(seed + 1, outputs, size, dtype=dtype, scale=size**-0.5)
    bias = random(seed + 2, outputs, dtype=dtype)
    exact = x.double() @ weight.double().T
    error = 1e-3 if dtype == torch.float16 else 3e-6
    for found, wanted in (
        (linear(x, weight, bias), exact + bias.double()),
        (linear(x, weight), exact),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=error, atol=error)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_every_kind_of_tile(tile: Tile, dtype: torch.dtype, seed: int) -> None:
    """A tile that pairs the wrong gate and up, swaps rows and columns, or walks past a group."""
    rows, size, outputs = 40, 64, 24
    x = random(seed, rows, size, dtype=dtype)
    pair = random(seed + 1, 2 * outputs, size, dtype=dtype, scale=size**-0.5)
    error = 2e-3 if dtype == torch.float16 else 3e-6
    for op, weight, wanted in (
        ("linear", pair[:outputs], ops_torch.linear(x, pair[:outputs])),
        ("linear_silu_mul", pair, ops_torch.linear_silu_mul(x, pair)),
    ):
        out = torch.full((rows, outputs), torch.nan, dtype=dtype)
        make_launch(tile, op, x, outputs)(x, weight, None, None, out)
        torch.testing.assert_close(out, wanted, rtol=error, atol=error)


@pytest.mark.parametrize("tile", TILES)
def test_rows_past_the_number_are_left(tile: Tile, seed: int) -> None:
    """Rows that matter must be there; whole row tiles after them must cost nothing."""
    rows, size, outputs = 70, 32, 16
    x = random(seed, rows, size, dtype=torch.float32)
    weight = random(seed + 1, outputs, size, dtype=torch.float32)
    for num in (0, 1, 32, 70):
        out = torch.full((rows, outputs), torch.nan)
        launch = make_launch(tile, "linear", x, outputs, rows=True)
        launch(x, weight, None, torch.tensor([num], dtype=torch.int32), out)
        torch.testing.assert_close(out[:num], (x @ weight.T)[:num], rtol=1e-5, atol=1e-5)
        assert out[-(-num // tile.bm) * tile.bm :].isnan().all()


def test_operators_take_the_number_of_rows(seed: int) -> None:
    """The word num_rows of their declaration: a keyword, int32 [1]."""
    x = random(seed, 40, 32, dtype=torch.float32)
    weight = random(seed + 1, 24, 32, dtype=torch.float32)
    num = torch.tensor([17], dtype=torch.int32)
    found = linear(x, weight, num_rows=num)[:17]
    torch.testing.assert_close(found, (x @ weight.T)[:17], rtol=1e-5, atol=1e-5)
    gated = linear_silu_mul(x, weight, num_rows=num)[:17]
    wanted = ops_torch.linear_silu_mul(x, weight)[:17]
    torch.testing.assert_close(gated, wanted, rtol=1e-5, atol=1e-5)


def test_strided_and_empty_rows(seed: int) -> None:
    """A part of wider rows is no matrix of its own; a launch of no programs is an error."""
    wide = random(seed, 5, 64, dtype=torch.float32)
    weight = random(seed + 1, 8, 32, dtype=torch.float32)
    wanted = wide[:, 32:] @ weight.T
    torch.testing.assert_close(linear(wide[:, 32:], weight), wanted, rtol=1e-5, atol=1e-5)
    assert linear(wide[:0, :32], weight).shape == (0, 8)


def test_what_does_not_fit_is_named() -> None:
    """A kernel would read past the end without a word."""
    x = torch.ones(2, 32)
    with pytest.raises(ValueError, match=r"weight \[8, 16\] does not fit"):
        linear(x, torch.ones(8, 16))
    with pytest.raises(ValueError, match=r"bias \[7\] does not fit"):
        linear(x, torch.ones(8, 32), torch.ones(7))
    with pytest.raises(ValueError, match=r"weight \[7, 32\] does not fit"):
        linear_silu_mul(x, torch.ones(7, 32))
    with pytest.raises(ValueError, match="weight is torch.float16"):
        linear(x, torch.ones(8, 32).half())
