"""Rotary embedding: formula, layouts, tables, and what precedes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlt_core.contract import RopeSpec
from rlt_core.runtime.rope import (
    RopeTable,
    RopeTables,
    apply_rope,
    inverse_frequencies,
    prepare_qk,
)


def turned(x: Tensor, positions: Tensor, spec: RopeSpec, dtype: torch.dtype) -> Tensor:
    """x rotated at the positions."""
    table = RopeTable.build(spec, 512, "cpu", dtype)
    return apply_rope(x, *table.at(positions), spec)


def closed_form(x: Tensor, positions: Tensor, spec: RopeSpec) -> Tensor:
    """Pair by pair with complex numbers in float64."""
    out = x.double().clone()
    for i in range(spec.dim // 2):
        a, b = (2 * i, 2 * i + 1) if spec.interleaved else (i, i + spec.dim // 2)
        angle = positions.double() * spec.theta ** (-2 * i / spec.dim)
        point = torch.complex(x[..., a].double(), x[..., b].double())
        point = point * torch.polar(torch.ones_like(angle), angle)[:, None]
        out[..., a], out[..., b] = point.real, point.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [12, 16])
def test_rotation_is_the_formula(dim: int, interleaved: bool) -> None:
    """Halves against adjacent pairs, and sizes past `dim` left alone."""
    torch.manual_seed(1)
    spec = RopeSpec(theta=10000.0, dim=dim, interleaved=interleaved)
    x, positions = torch.randn(7, 3, 16), torch.tensor([0, 1, 2, 63, 64, 300, 511])
    got = turned(x, positions, spec, torch.float32)
    assert (got - closed_form(x, positions, spec)).abs().max() < 1e-4
    assert torch.equal(got[..., dim:], x[..., dim:])
    assert torch.equal(got[0], x[0])


def test_inverse_frequencies() -> None:
    """A zeroed or recast table is silent nonsense; Nanbeige's first values are known (A33)."""
    values = inverse_frequencies(RopeSpec(theta=7e7, dim=128))[:4]
    torch.testing.assert_close(
        values, torch.tensor([1.0, 0.754, 0.5686, 0.4288]), atol=1e-4, rtol=0
    )
    assert values.dtype == torch.float32


def test_tables_of_any_length_agree() -> None:
    """torch.cos may differ by place: a longer table must hold the same bits."""
    spec = RopeSpec(theta=1e6, dim=20)
    short = RopeTable.build(spec, 33, "cpu", torch.bfloat16)
    long = RopeTable.build(spec, 1000, "cpu", torch.bfloat16)
    assert torch.equal(short.cos, long.cos[: len(short.cos)])
    assert torch.equal(short.sin, long.sin[: len(short.sin)])
    assert len(short.cos) > 33
    assert short.cos.dtype == torch.bfloat16
    tables = RopeTables(33, "cpu", torch.bfloat16)
    assert tables.get(spec) is tables.get(RopeSpec(theta=1e6, dim=20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_are_independent(dtype: torch.dtype, interleaved: bool) -> None:
    """A row rotated alone has the bits it has in a batch."""
    torch.manual_seed(2)
    spec = RopeSpec(theta=1e4, dim=12, interleaved=interleaved)
    x, positions = torch.randn(257, 3, 12).to(dtype), torch.arange(257)
    together = turned(x, positions, spec, dtype)
    assert together.dtype == dtype
    for start, count in ((0, 1), (5, 3), (100, 33), (256, 1)):
        rows = slice(start, start + count)
        assert torch.equal(turned(x[rows], positions[rows], spec, dtype), together[rows])


def test_half_rotation_rounds_in_the_activation_dtype() -> None:
    """The authors multiply in bfloat16; one rounding at the end would be another model."""
    torch.manual_seed(3)
    spec = RopeSpec(theta=1e4, dim=8)
    x, positions = torch.randn(9, 2, 8).bfloat16(), torch.arange(9) * 7
    angle = positions[:, None].float() * inverse_frequencies(spec)
    cos, sin = (torch.cat((f(angle),) * 2, -1).bfloat16()[:, None] for f in (torch.cos, torch.sin))
    swapped = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
    assert torch.equal(turned(x, positions, spec, torch.bfloat16), x * cos + swapped * sin)


def test_bias_then_norm_then_rope() -> None:
    """The order of the three is the contract's."""
    torch.manual_seed(4)
    spec = RopeSpec(theta=1e4, dim=8)
    table = RopeTable.build(spec, 16, "cpu", torch.float32)
    q, k, bias = torch.randn(5, 2, 8), torch.randn(5, 2, 8), torch.randn(2, 2, 8)
    weights = (torch.randn(8), torch.randn(8))
    positions = torch.arange(5)
    got = prepare_qk(q, k, positions, table=table, qk_bias=bias, qk_norm=(*weights, 1e-6))
    for out, x, b, w in zip(got, (q, k), bias, weights, strict=True):
        moved = (x + b).double()
        normed = moved / torch.sqrt(moved.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        assert (out - closed_form(normed, positions, spec)).abs().max() < 1e-5
    plain = prepare_qk(q, k, positions)
    assert plain[0] is q
    assert plain[1] is k
