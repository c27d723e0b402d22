"""`native.silu_mul` on a GPU: the reference's bits for every gate, whatever the rows and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlt_core.runtime import ops_torch
from tests.gpu_kit import DEVICE, TOTAL, bits, differing, needs_gpu, random, same
from tests.native_kit import PROJECT, hatch_build, nvcc

pytestmark = pytest.mark.gpu
DTYPES = (torch.bfloat16, torch.float16)
# Ones, signed zeros, halves, large and tiny: a wrong rounding of silu shows in a product with them.
UPS = (1.0, -1.0, 0.0, -0.0, 0.5, 1.5, 3.140625, -60000.0, 6.1e-5, float("inf"), float("nan"))


@pytest.fixture(scope="module")
def silu_mul(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Tensor], Tensor]]:
    """The operator, of this install's library where there is one, else of one built now."""
    needs_gpu()
    pytest.importorskip("triton")
    from rlt_kernels import native
    from rlt_kernels.native import loader, silu

    with pytest.MonkeyPatch.context() as patch:
        if not native.LIBRARY.is_file():
            nvcc()
            made = Path(tmp_path_factory.mktemp("native")) / "library.so"
            hatch_build().compile_library(PROJECT, made)
            patch.setattr(native, "LIBRARY", made)
        loader.load_library.cache_clear()
        yield silu.silu_mul
        loader.load_library.cache_clear()


def _every(dtype: torch.dtype) -> Tensor:
    """All 65,536 values of a dtype."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16, device=DEVICE).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_gate_has_the_bits_of_the_reference(
    silu_mul: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """An approximate exp or division, a product that is rounded once instead of twice."""
    gate = _every(dtype)
    for up in UPS:
        rows = torch.cat((gate, torch.full_like(gate, up))).view(1, -1)
        assert same(silu_mul(rows), ops_torch.silu_mul(rows)), up
        # One value at a time: as many columns as no vector holds.
        odd = torch.cat((gate[:-1], torch.full_like(gate[:-1], up))).view(1, -1)
        assert same(silu_mul(odd), ops_torch.silu_mul(odd)), up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 8, 100, 2048, 5632, 5633])
def test_rows_are_independent(
    silu_mul: Callable[[Tensor], Tensor], width: int, dtype: torch.dtype, seed: int
) -> None:
    """Rows and places that take another path, and columns at the end of a block."""
    x = random(seed, TOTAL, 2 * width, dtype=dtype, scale=3)
    assert same(silu_mul(x), ops_torch.silu_mul(x))
    assert differing(silu_mul, x) == []
    wide = random(seed, 40, 2 * width + 24, dtype=dtype, scale=3)
    for start in (0, 1, 8, 24):
        rows = wide[:, start : start + 2 * width]
        assert same(silu_mul(rows), ops_torch.silu_mul(rows.contiguous())), start


def test_no_rows(silu_mul: Callable[[Tensor], Tensor]) -> None:
    """An empty grid, which CUDA refuses."""
    empty = torch.empty(0, 16, dtype=torch.float16, device=DEVICE)
    assert silu_mul(empty).shape == (0, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_captured_chain_gives_the_eager_bits(
    silu_mul: Callable[[Tensor], Tensor], dtype: torch.dtype, seed: int
) -> None:
    """A launch on another stream than the capture's, or a read before the kernel in front ended."""
    from rlt_kernels import products

    weight = random(seed, 2 * 512, 512, dtype=dtype, scale=512**-0.5)
    x = random(seed + 1, 64, 512, dtype=dtype)

    def chain(look: Callable[[], None]) -> Tensor:
        state = x
        for _ in range(12):
            state = silu_mul(products.linear(state, weight)) + x
            look()
        return state

    wanted = chain(torch.cuda.synchronize)
    assert bits(wanted).unique().numel() > 1000
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(lambda: None)
    for _ in range(20):
        found.zero_()
        graph.replay()
        assert same(found, wanted)
