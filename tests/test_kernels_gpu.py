"""rlt-kernels' row operators on a GPU: bits that no row count changes, and chains of launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlt_core.runtime import ops_torch
from tests.gpu_kit import DTYPES, TOTAL, RowFunction, differing, needs_gpu, random, same

pytestmark = pytest.mark.gpu
EPS = 1e-6


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs_gpu()


def _functions(ops: Any, w: Tensor, w_next: Tensor) -> dict[str, RowFunction]:
    """Row operators of [R, 2 W] by name; what gives two results gives them side by side."""
    width = len(w)

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :width], x[:, width:]

    return {
        "rms_norm": lambda x: ops.rms_norm(halves(x)[1], w, EPS),
        "add_norm": lambda x: ops.add_norm(*halves(x), w, EPS),
        "add_rms_norm": lambda x: torch.cat(ops.add_rms_norm(*halves(x), w, EPS), 1),
        "norm_add_norm": lambda x: torch.cat(ops.norm_add_norm(*halves(x), w, w_next, EPS), 1),
        "silu_mul": ops.silu_mul,
    }


class _Kernels:
    """The operators of rlt-kernels, imported when a test runs: not every machine has Triton."""

    def __init__(self) -> None:
        from rlt_kernels import embed, norms, products, silu

        self.embed = embed.embed
        self.rms_norm, self.add_norm = norms.rms_norm, norms.add_norm
        self.add_rms_norm, self.norm_add_norm = norms.add_rms_norm, norms.norm_add_norm
        self.silu_mul = silu.silu_mul
        self.linear, self.linear_silu_mul = products.linear, products.linear_silu_mul


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 64, 100, 1000, 2048, 5280, 8192])
def test_rows_are_independent_and_right(width: int, dtype: torch.dtype, seed: int) -> None:
    """A reduction whose tree depends on the rows; a rounding point that the compiler fused away;
    both halves of wider rows, so that addresses differ in what they are multiples of."""
    x = random(seed, TOTAL, 2 * width, dtype=dtype, scale=3)
    w, w_next = (random(seed + i, width, dtype=dtype) for i in (1, 2))
    ours, theirs = _functions(_Kernels(), w, w_next), _functions(ops_torch, w, w_next)
    for name, function in ours.items():
        assert differing(function, x) == [], name
        wanted = theirs[name](x).float()
        error = (function(x).float() - wanted).abs() / wanted.abs().clamp(min=1)
        eps = torch.finfo(dtype).eps
        # The sum's order moves a scale by its last bit: all of float32, few of what is rounded
        # after it. A rounding point too few or too many moves a quarter of eps on average.
        assert error.max() <= 16 * eps, name
        assert error.mean() <= (2 * eps if dtype == torch.float32 else eps / 20), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_narrow_gate(dtype: torch.dtype) -> None:
    """The quotient of 16-bit gates has no branch: it must be the exact one's, rounded, for every
    gate there is, zeros, infinities and NaN among them."""
    every = torch.arange(1 << 16, device="cuda").to(torch.int16).view(dtype)
    rows = every[:, None].repeat(1, 16)
    rows[:, 8:] = 1
    found, wanted = (_Kernels().silu_mul(x).to(dtype) for x in (rows, rows.float()))
    known = ~wanted.isnan()
    assert torch.equal(found.isnan(), ~known)
    assert torch.equal(found[known].view(torch.int16), wanted[known].view(torch.int16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_and_odd_addresses(dtype: torch.dtype, seed: int) -> None:
    """A first call at a good address must not decide how later ones load."""
    kernels = _Kernels()
    packed = random(seed, 40, 12, 128, dtype=dtype)
    w = random(seed + 1, 128, dtype=dtype)
    wanted = ops_torch.rms_norm(packed[:, 3:7], w, EPS).float()
    found = kernels.rms_norm(packed[:, 3:7], w, EPS)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-2)
    assert same(kernels.rms_norm(packed[5:6, 3:7], w, EPS), found[5:6])
    flat = random(seed, 9, 136, dtype=dtype)
    for start in range(9):
        rows = flat[:, start : start + 128]
        assert same(kernels.rms_norm(rows, w, EPS), kernels.rms_norm(rows.contiguous(), w, EPS))
        assert same(kernels.silu_mul(rows), kernels.silu_mul(rows.contiguous()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 100, 2048])
def test_embed_copies_and_clamps(width: int, dtype: torch.dtype, seed: int) -> None:
    """A padded row's token may be anything; reading outside the table would kill the process."""
    table = random(seed, 1000, width, dtype=dtype)
    tokens = torch.tensor([3, 0, 999, 10**12, -5] * 60, device=table.device)
    assert torch.equal(_Kernels().embed(tokens, table), table[tokens.clamp(0, 999)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 16, 64, 200])
def test_a_captured_chain_gives_the_eager_bits(rows: int, dtype: torch.dtype, seed: int) -> None:
    """Kernels start before the one in front has ended: a read before the wait, or a program that
    leaves without it, gives a few wrong values in a captured chain and none with a look between."""
    kernels = _Kernels()
    width, inner = 512, 1408
    weights = [
        random(seed + i, outputs, size, dtype=dtype, scale=size**-0.5)
        for i, (outputs, size) in enumerate(((width, width), (2 * inner, width), (width, inner)))
    ]
    norms = [random(seed + 9 + i, width, dtype=dtype) for i in range(4)]
    x = random(seed + 5, rows, width, dtype=dtype)
    count = torch.tensor([rows], dtype=torch.int32, device=x.device)

    def chain(look: Callable[[], None]) -> Tensor:
        state, residual = kernels.rms_norm(x, norms[0], EPS), x
        for _ in range(12):
            mixed = kernels.linear(state, weights[0], num_rows=count)
            look()
            state, residual = kernels.norm_add_norm(mixed, residual, norms[1], norms[2], EPS)
            look()
            gated = kernels.linear_silu_mul(state, weights[1])
            look()
            mixed = kernels.linear(gated, weights[2])
            look()
            state, residual = kernels.norm_add_norm(mixed, residual, norms[3], norms[0], EPS)
            look()
            state = kernels.add_norm(
                state, kernels.rms_norm(residual, norms[1], EPS), norms[2], EPS
            )
        return state

    wanted = chain(torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(lambda: None)
    for _ in range(20):
        found.zero_()
        graph.replay()
        assert same(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fused_gate_has_the_bits_of_two_operators(dtype: torch.dtype, seed: int) -> None:
    """A product that stays in float32 before the gate, or another exp beside other code."""
    kernels = _Kernels()
    for inner, size in ((5632, 2048), (112, 64), (37, 100)):
        x = random(seed, 200, size, dtype=dtype, scale=3)
        pair = random(seed + 1, 2 * inner, size, dtype=dtype, scale=size**-0.5)
        for rows in (1, 16, 64, 200):
            two = kernels.silu_mul(kernels.linear(x[:rows], pair))
            assert same(kernels.linear_silu_mul(x[:rows], pair), two), (inner, rows)
