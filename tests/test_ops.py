"""Reference operators: a row's bits depend on no neighbour, its place, row or thread count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlt_core.runtime import ops_torch as ops
from tests.selection import mostly_slow

ROWS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257)
TOTAL = 257
DTYPES = (torch.float32, torch.bfloat16)
# (in, out): the golden and demo models' shapes, odd ones, one column, wide ones
SHAPES = (
    *((32, 96), (48, 128), (64, 192), (112, 64), (128, 768), (384, 128), (100, 37)),
    *((64, 1), (512, 1536), (257, 257)),
)

RowFunction = Callable[[Tensor], Tensor]


def differing(function: RowFunction, x: Tensor, counts: tuple[int, ...] = ROWS) -> list[str]:
    """Where a row's bits change with row count, place or thread count."""
    torch.set_num_threads(1)
    reference = function(x)
    found = []
    for threads, tried in ((1, counts), (2, counts[-1:])):
        torch.set_num_threads(threads)
        for count in tried:
            for start in {0, (len(x) - count) // 2, len(x) - count}:
                rows = slice(start, start + count)
                if not torch.equal(function(x[rows]), reference[rows]):
                    found.append(f"{threads} threads, rows {start} to {start + count}")
    return found


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers; the seed is printed for a failing run."""
    print("seed", seed)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_rows_are_independent(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """float32 F.linear changes a row with 1 to 8 rows and with a single output column."""
    size_in, size_out = shape
    x = random(1, TOTAL, size_in, dtype=dtype)
    weight = random(2, size_out, size_in, dtype=dtype)
    bias = random(3, size_out, dtype=dtype)
    assert not differing(lambda rows: ops.linear(rows, weight), x)
    assert not differing(lambda rows: ops.linear(rows, weight, bias), x, (1, 3, 33, 256))


@pytest.mark.parametrize("dtype", mostly_slow(DTYPES, DTYPES[0]))
def test_wide_linear_rows_are_independent(dtype: torch.dtype) -> None:
    """Ouro-1.4B's down projection; a product that splits K over threads would fail here, and one
    row alone on a CPU with bfloat16 arithmetic."""
    x = random(4, 40, 5632, dtype=dtype)
    weight = random(5, 2048, 5632, dtype=dtype)
    assert not differing(lambda rows: ops.linear(rows, weight), x, (1, 3, 33))


@pytest.mark.slow
@pytest.mark.parametrize("most", ["AVX512_CORE", "AVX2"])
def test_wide_bfloat16_rows_are_independent_on_other_cpus(most: str) -> None:
    """The library has products for each kind of CPU, of which this one may run the lesser ones."""
    name = test_wide_linear_rows_are_independent.__name__
    case = f"{__file__}::{name}[dtype1]"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": most}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        case,
    ]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]
    assert "1 passed" in found.stdout


def test_unpadded_linear_would_be_caught() -> None:
    """The check itself: plain F.linear must fail it on this machine, or it shows nothing."""
    x, weight = random(6, TOTAL, 128), random(7, 1, 128)
    assert differing(lambda rows: torch.nn.functional.linear(rows, weight), x)


def test_linear_is_a_product() -> None:
    """Padding or rounding must not change the value: float64 is the truth."""
    x, weight, bias = random(8, 5, 64), random(9, 48, 64), random(10, 48)
    truth = x.double() @ weight.double().T + bias.double()
    assert (ops.linear(x, weight, bias) - truth).abs().max() < 1e-4
    half = ops.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    rounded = x.bfloat16().double() @ weight.bfloat16().double().T + bias.bfloat16().double()
    assert half.dtype == torch.bfloat16
    assert ((half - rounded) / rounded).abs().max() < 2**-8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", mostly_slow([3, 32, 48, 100, 128, 257, 2048], 3, 48, 100, 128))
def test_norms_and_silu_rows_are_independent(width: int, dtype: torch.dtype) -> None:
    """torch.silu and sigmoid change with an element's place; norms must have one tree."""
    x = random(11, TOTAL if width < 2048 else 40, 2 * width, dtype=dtype)
    counts = tuple(count for count in ROWS if count <= len(x))
    w_post, w_next = random(12, width, dtype=dtype), random(13, width, dtype=dtype)
    for function in (ops.silu_mul, ops.stable_sigmoid, *_norms(w_post, w_next, width)):
        assert not differing(function, x, counts)


def _norms(w_post: Tensor, w_next: Tensor, width: int) -> list[RowFunction]:
    def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[:, :width], rows[:, width:]

    return [
        lambda rows: ops.rms_norm(rows[:, :width], w_next, 1e-6),
        lambda rows: torch.cat(ops.add_rms_norm(*halves(rows), w_next, 1e-6), dim=1),
        lambda rows: torch.cat(ops.norm_add_norm(*halves(rows), w_post, w_next, 1e-6), dim=1),
        lambda rows: ops.add_norm(*halves(rows), w_next, 1e-6),
    ]


def test_norms_are_the_authors() -> None:
    """Sandwich norms lost or reordered (CASES A7, A16); eps inside the root, weight not 1 + w."""
    sub, residual = random(14, 4, 8), random(15, 4, 8)
    w_post, w_next = random(16, 8), random(17, 8)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt(x.double().pow(2).mean(-1, keepdim=True) + 0.5) * weight

    total = residual + norm(sub, w_post)
    normed, kept = ops.norm_add_norm(sub, residual, w_post, w_next, 0.5)
    torch.testing.assert_close(kept, total.float())
    torch.testing.assert_close(normed, norm(total, w_next).float())
    both = ops.add_rms_norm(sub, residual, w_next, 0.5)
    torch.testing.assert_close(both[0], norm(sub + residual, w_next).float())
    torch.testing.assert_close(both[1], sub + residual)
    torch.testing.assert_close(ops.add_norm(sub, residual, w_next, 0.5), both[0])


def test_rounding_points_in_bfloat16() -> None:
    """The authors cast the normed value and silu to the model's dtype before they multiply."""
    x, weight = random(18, 6, 64, dtype=torch.bfloat16), random(19, 64, dtype=torch.bfloat16)
    wide = x.float()
    inner = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(ops.rms_norm(x, weight, 1e-6), inner.bfloat16() * weight)
    gate, up = x[:, :32], x[:, 32:]
    silu = torch.nn.functional.silu(gate.double()).bfloat16()
    assert torch.equal(ops.silu_mul(x), silu * up)


def test_sigmoid_at_extremes() -> None:
    """exp overflow must give 0 and 1, not NaN."""
    x = torch.tensor([-1e4, -200.0, 0.0, 200.0, 1e4])
    assert torch.equal(ops.stable_sigmoid(x), torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_broken_row_stays_alone(dtype: torch.dtype) -> None:
    """Infinity or NaN in one row must leave its neighbours' bits (CASES A29)."""
    x, weight = random(20, 20, 64, dtype=dtype), random(21, 32, 64, dtype=dtype)
    broken = x.clone()
    broken[7, 3], broken[8] = torch.inf, torch.nan
    others = [row for row in range(20) if row not in (7, 8)]
    for function in (lambda r: ops.linear(r, weight), ops.silu_mul):
        assert torch.equal(function(x)[others], function(broken)[others])
