"""Row operators (norms, silu_mul, embed) against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.runtime import ops_torch
from rlt_kernels import embed, norms, silu

DTYPES = (torch.float32, torch.float16)
# powers of two and not, rows that are no multiple of 16 bytes, several rows a program and one
WIDTHS = (8, 10, 96, 1000, 2048)
EPS = 1e-5


def random(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(found: Tensor, wanted: Tensor) -> None:
    """Equal but for the order of a sum, which moves the last bit of few values. A rounding point
    too few or too many moves a quarter of eps on average."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    eps = torch.finfo(found.dtype).eps
    error = (found.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1)
    assert error.max() <= 16 * eps
    assert error.mean() <= (2 * eps if found.dtype == torch.float32 else eps / 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_and_gate(width: int, dtype: torch.dtype, seed: int) -> None:
    """A rounding point left out, a neighbour's row, a mean over the padded width; halves of wider
    rows must be read at their own strides."""
    x = random(seed, 9 if width < 1000 else 2, 2 * width, dtype=dtype)
    one, two = x[:, :width], x[:, width:]
    w, w_next = (random(seed + i, width, dtype=dtype) for i in (1, 2))
    check(norms.rms_norm(two, w, EPS), ops_torch.rms_norm(two, w, EPS))
    check(norms.add_norm(one, two, w, EPS), ops_torch.add_norm(one, two, w, EPS))
    for found, wanted in zip(
        norms.add_rms_norm(one, two, w, EPS), ops_torch.add_rms_norm(one, two, w, EPS), strict=True
    ):
        check(found, wanted)
    for found, wanted in zip(
        norms.norm_add_norm(one, two, w, w_next, EPS),
        ops_torch.norm_add_norm(one, two, w, w_next, EPS),
        strict=True,
    ):
        check(found, wanted)
    check(silu.silu_mul(x), ops_torch.silu_mul(x))


def test_every_narrow_gate() -> None:
    """The quotient of 16-bit gates has no branch: it must be the exact one's, rounded, for every
    gate there is, zeros, infinities and NaN among them."""
    gate = torch.arange(1 << 16).to(torch.int16).view(torch.float16).view(128, 512)
    rows = torch.cat((gate, torch.ones_like(gate)), 1)
    with np.errstate(all="ignore"):  # the interpreter computes with numpy
        found, wanted = silu.silu_mul(rows), silu.silu_mul(rows.float()).half()
    known = ~wanted.isnan()
    assert torch.equal(found.isnan(), ~known)
    assert torch.equal(found[known].view(torch.int16), wanted[known].view(torch.int16))


def test_heads_of_packed_rows(seed: int) -> None:
    """The norm of queries inside a packed product: two strides, and the values between left out."""
    x = random(seed, 5, 7, 24, dtype=torch.float32)[:, 1:4]
    w = random(seed + 1, 24, dtype=torch.float32)
    check(norms.rms_norm(x, w, EPS), ops_torch.rms_norm(x, w, EPS))
    deep = random(seed, 2, 3, 4, 24, dtype=torch.float32)
    check(norms.rms_norm(deep, w, EPS), ops_torch.rms_norm(deep, w, EPS))


def test_rows_at_odd_addresses(seed: int) -> None:
    """A wide load from an address that is no multiple of its bytes fails on a GPU."""
    x = random(seed, 3, 33, dtype=torch.float32)[:, 1:]
    w = random(seed + 1, 32, dtype=torch.float32)
    # and columns that lie apart
    turned = random(seed, 32, 3, dtype=torch.float32).t()
    for rows in (x, turned):
        check(norms.rms_norm(rows, w, EPS), ops_torch.rms_norm(rows, w, EPS))
        check(silu.silu_mul(rows), ops_torch.silu_mul(rows))


@pytest.mark.parametrize("width", WIDTHS)
def test_embed_copies_and_clamps(width: int, seed: int) -> None:
    """A padded row's token may be anything; it must not read outside the table."""
    table = random(seed, 11, width, dtype=torch.float16)
    tokens = torch.tensor([3, 0, 10, 10**12, -5])
    assert torch.equal(embed.embed(tokens, table), table[tokens.clamp(0, 10)])


def test_no_rows(seed: int) -> None:
    """A launch of no programs is an error of the driver."""
    x, w = random(seed, 0, 32, dtype=torch.float32), torch.ones(32)
    assert norms.rms_norm(x, w, EPS).shape == (0, 32)
    assert norms.add_rms_norm(x, x, w, EPS)[1].shape == (0, 32)
    assert silu.silu_mul(x).shape == (0, 16)
    assert embed.embed(torch.zeros(0, dtype=torch.int64), x.new_ones(4, 8)).shape == (0, 8)


def test_what_does_not_fit_is_named() -> None:
    """A kernel would read past the end, or mix dtypes, without a word."""
    x, w = torch.ones(2, 32), torch.ones(32)
    with pytest.raises(ValueError, match=r"the weight \[16\] does not fit"):
        norms.rms_norm(x, w[:16], EPS)
    with pytest.raises(ValueError, match=r"residual \[1, 32\] does not fit"):
        norms.add_norm(x, x[:1], w, EPS)
    with pytest.raises(ValueError, match="w_post is torch.float16"):
        norms.norm_add_norm(x, x, w.half(), w, EPS)
    with pytest.raises(ValueError, match=r"gate_up \[2, 31\]"):
        silu.silu_mul(x[:, :31])
    with pytest.raises(ValueError, match=r"wanted \[R\] and \[V, W\]"):
        embed.embed(torch.zeros(2, 2, dtype=torch.int64), x)
