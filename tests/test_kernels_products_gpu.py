"""rlt-kernels' products on a GPU: no tile, no row count and no neighbour changes a bit."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu_kit import DTYPES, TOTAL, differing, needs_gpu, random, same

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]
# in, out: the widths of Ouro-1.4B, odd ones, one column
SHAPES = ((2048, 6144), (5632, 2048), (64, 1), (100, 37), (96, 160))


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs_gpu()


def _operands(seed: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    size, outputs = shape
    x = random(seed, TOTAL, size, dtype=dtype)
    weight = random(seed + 1, 2 * outputs, size, dtype=dtype, scale=size**-0.5)
    return x, weight, random(seed + 2, outputs, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_independent_and_right(
    shape: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    """A tile for another row count that adds in another order; an error beyond one rounding of
    the exact sum, as from TF32 or sums in a narrow type."""
    from rlt_kernels.products import linear, linear_silu_mul

    x, weight, bias = _operands(seed, shape, dtype)
    half = weight[: shape[1]]
    for function in (
        lambda rows: linear(rows, half),
        lambda rows: linear(rows, half, bias),
        lambda rows: linear_silu_mul(rows, weight),
    ):
        assert differing(function, x) == []
    exact = x.double() @ half.double().T + bias.double()
    error = (linear(x, half, bias).double() - exact).abs() / exact.abs().clamp(min=1)
    assert error.max() <= max(torch.finfo(dtype).eps, 2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_past_the_number_change_nothing(dtype: torch.dtype, seed: int) -> None:
    """A captured launch has more rows than matter: the others' bits must be those of all."""
    from rlt_kernels.products import linear, linear_silu_mul

    x, weight, bias = _operands(seed, (512, 256), dtype)
    for num in (1, 15, 64, 130, 300):
        count = torch.tensor([num], dtype=torch.int32, device=x.device)
        found = linear(x, weight[:256], bias, num_rows=count)[:num]
        assert same(found, linear(x, weight[:256], bias)[:num])
        found = linear_silu_mul(x, weight, num_rows=count)[:num]
        assert same(found, linear_silu_mul(x, weight)[:num])


@pytest.mark.parametrize("op", ["linear", "linear_silu_mul"])
@pytest.mark.parametrize(("dtype", "step"), [(torch.bfloat16, 1), (torch.float16, 6)])
def test_every_candidate_has_the_reference_s_bits(
    op: Any, dtype: torch.dtype, step: int, seed: int
) -> None:
    """The tuner may choose any of them for any row count. All in bfloat16, some in float16."""
    from rlt_kernels.products import make_launch
    from rlt_kernels.tiles import BUCKETS, Key, Tile
    from rlt_kernels.tune.candidates import REFERENCE, first_tiles, next_tiles
    from rlt_kernels.tune.compiling import compile_all, compilers

    size, outputs = 2048, 336
    name = str(dtype).removeprefix("torch.")
    keys = [Key(op=op, dtype=name, n=outputs, k=size, rows=rows) for rows in BUCKETS]
    firsts = [first_tiles(key, special=False) for key in keys]
    changed = chain(
        *(next_tiles(found[::15], key) for found, key in zip(firsts, keys, strict=True))
    )
    tiles: list[Tile] = list(dict.fromkeys([*chain(*firsts), *changed]))[::step]
    with compilers() as pool:
        errors = compile_all(pool, [(keys[0], tile) for tile in tiles])
    x = random(seed, TOTAL, size, dtype=dtype)
    weight = random(seed + 1, (1 + (op != "linear")) * outputs, size, dtype=dtype, scale=size**-0.5)

    def product(tile: Tile, rows: int) -> Tensor:
        out = torch.full((rows, outputs), torch.nan, dtype=dtype, device=x.device)
        make_launch(tile, op, x, outputs)(x[:rows], weight, None, None, out)
        return out

    wanted = product(REFERENCE, TOTAL)
    refused = {tile for _, tile in errors}
    works = [tile for tile in tiles if tile not in refused]
    print(f"{len(works)} of {len(tiles)} tiles compile")
    assert len(works) > len(tiles) / 2
    wrong = [
        (tile, rows)
        for tile in works
        for rows in (1, 17, 130, TOTAL)
        if not same(product(tile, rows), wanted[:rows])
    ]
    assert wrong == []
