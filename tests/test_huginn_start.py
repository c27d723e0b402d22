"""The random start latent: its distribution, its keys, and zeros that are zeros."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlt_huginn.start import CUT, random_latent
from tests.huginn import GOLDEN, MODELS, build, context

STD = math.sqrt(0.4)


def drawn(bits: Tensor, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Start latents of bits [R, E], all rows at one scale."""
    return random_latent(bits, STD, torch.full((len(bits),), scale), dtype)


@pytest.fixture
def bits(seed: int) -> Tensor:
    """Uniform uint32 values, 300 x 1000."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**32, (300, 1000), generator=draw)


def test_the_distribution_is_a_normal_one_cut_at_three_deviations(bits: Tensor) -> None:
    """Guards the formula: mean 0, deviation 0.624 (0.632 before the cut), limits +-1.897, and
    the share of values below each of 41 points within 5 deviations of what it should be."""
    values = drawn(bits).double().flatten()
    assert abs(values.mean()) < 5 * 0.624 / math.sqrt(values.numel())
    assert abs(values.std() - 0.62397) < 0.004
    assert values.abs().max() < CUT * STD
    assert values.abs().max() > 2.8 * STD
    inside = math.erf(CUT / math.sqrt(2))
    for point in torch.linspace(-2.9, 2.9, 41).tolist():
        share = (values < point * STD).double().mean().item()
        wanted = 0.5 + math.erf(point / math.sqrt(2)) / (2 * inside)
        error = math.sqrt(wanted * (1 - wanted) / values.numel())
        assert abs(share - wanted) < 5 * error + 1e-9, point


def test_the_ends_of_the_uniform_numbers() -> None:
    """The first and the last number give the limits, never infinity, and mirror each other."""
    ends = torch.tensor([[0, 2**31 - 1, 2**31, 2**32 - 1]])
    low, below, above, high = drawn(ends, dtype=torch.float64)[0].tolist()
    assert math.isclose(high, CUT * STD, rel_tol=1e-6)
    assert (low, below) == (-high, -above)
    assert 0 < above < 1e-9


def test_the_scale_is_a_factor_and_zero_is_zero(bits: Tensor) -> None:
    """Scale 0 must give the authors' deterministic start exactly, without a minus sign."""
    once = drawn(bits[:4])
    assert torch.equal(drawn(bits[:4], 2.0), once * 2)
    zeros = drawn(bits[:4], 0.0)
    assert torch.equal(zeros.view(torch.int32), torch.zeros_like(zeros, dtype=torch.int32))


def test_a_row_depends_on_its_own_bits_alone(bits: Tensor) -> None:
    """Guards against an inverse error function whose bits change with the place in a tensor."""
    whole = drawn(bits, dtype=torch.float64)
    for rows in (1, 3, 7, 33):
        assert torch.equal(drawn(bits[5 : 5 + rows], dtype=torch.float64), whole[5 : 5 + rows])


@pytest.mark.parametrize("name", MODELS)
def test_the_start_is_keyed_by_state_seed_and_position(name: str) -> None:
    """Another seed or position gives another latent; the global seed and the token change
    nothing (A47)."""
    model, width = build(GOLDEN / name), build(GOLDEN / name).config.n_embd

    def start(seed: int, tokens: list[int]) -> Tensor:
        ctx = context(model, len(tokens), seed=seed)
        return model.prelude(torch.tensor(tokens), ctx)[:, :width]

    first = start(3, [1, 2, 3, 4])
    torch.manual_seed(0)
    assert torch.equal(first, start(3, [9, 9, 9, 9]))
    assert len(first.unique(dim=0)) == 4
    assert not torch.isclose(first, start(4, [1, 2, 3, 4])).any(dim=1).all()
    assert 0.4 < first.std() < 0.8
