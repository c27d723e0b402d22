"""The exit policies, on hand-made hazards and on every place a row may have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlt_core.exits.fixed import Fixed
from rlt_core.exits.gate import Gate
from rlt_core.exits.trace import Trace


def logit(hazard: float) -> float:
    """The gate logit whose probability is `hazard`."""
    if hazard in (0.0, 1.0):
        return math.inf if hazard else -math.inf
    return math.log(hazard) - math.log1p(-hazard)


def gate_depths(logits: Tensor, threshold: Tensor) -> list[int]:
    """Depth at which each row leaves (0: never): logits [R, loops], threshold [R]."""
    policy = Gate()
    state = {"remaining": torch.ones(len(logits))}
    left = torch.zeros(len(logits), dtype=torch.int64)
    for loop in range(1, logits.shape[1] + 1):
        depth = torch.full((len(logits),), loop)
        params = {"exit_threshold": threshold}
        signals = {"gate": logits[:, loop - 1]}
        leaves, new = policy.decide(signals, state, params, depth)
        state = dict(new)
        left = torch.where((left == 0) & leaves, depth, left)
    return [int(depth) for depth in left]


@pytest.mark.parametrize(
    ("hazards", "threshold", "depth"),
    [
        ((0.4, 0.4, 0.4), 0.6, 2),  # cumulative 0.40, 0.64: a per-loop test never leaves
        ((0.4, 0.4, 0.4), 0.39, 1),
        ((0.4, 0.4, 0.4), 0.65, 3),
        ((0.5, 0.5, 0.5), 0.5, 1),  # equality leaves
        ((0.5, 0.5, 0.5), 0.75, 2),
        ((0.5, 0.5, 0.5), 0.875, 3),
        ((0.5, 0.5, 0.5), 0.876, 0),
        ((0.1, 0.2, 0.3), 0.0, 1),
        ((0.0, 0.0, 0.0), 0.0, 1),
        ((0.0, 0.0, 0.0), 0.1, 0),
        ((0.0, 0.0, 1.0), 0.999, 3),
        ((1.0, 1.0, 1.0), 1.0, 0),
        ((0.9, 0.0, 0.0), 0.95, 0),
        ((0.1, 0.9, 0.1), 0.9, 2),
    ],
)
def test_gate_compares_the_cumulative_probability(
    hazards: tuple[float, ...], threshold: float, depth: int
) -> None:
    """A10: the threshold was compared with the hazard, not with 1 - prod(1 - hazard)."""
    logits = torch.tensor([[logit(hazard) for hazard in hazards]])
    assert gate_depths(logits, torch.tensor([threshold])) == [depth]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threshold_one_never_leaves(dtype: torch.dtype) -> None:
    """A11: a logit above 6.3 is probability 1 in bfloat16 and left at loop 1 of 'full depth'."""
    logits = torch.full((2, 4), 40.0, dtype=dtype)
    assert gate_depths(logits, torch.tensor([1.0, 0.999])) == [0, 1]


def test_bfloat16_logits_give_the_depths_of_float32() -> None:
    """A11: the accumulation in bfloat16 turned 0.2 into 0.2002 and moved exits."""
    seed = 1311
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(400, 6, generator=generator) * 3).bfloat16()
    state, params = {"remaining": torch.ones(400)}, {"exit_threshold": torch.ones(400)}
    depth = torch.ones(400, dtype=torch.int64)
    one, other = (
        Gate().decide({"gate": gate}, state, params, depth)[1]["remaining"]
        for gate in (logits[:, 0], logits[:, 0].float())
    )
    assert torch.equal(one, other)
    cdf = 1 - (1 - logits.double().sigmoid()).cumprod(1)
    compared = 0
    for threshold in (0.3, 0.5, 0.7, 0.9, 0.99):
        clear = ((cdf - threshold).abs() > 1e-2).all(1)
        reached = cdf >= threshold
        wanted = torch.where(reached.any(1), reached.int().argmax(1) + 1, 0)[clear]
        limits = torch.full((int(clear.sum()),), threshold)
        assert gate_depths(logits[clear], limits) == wanted.tolist()
        assert gate_depths(logits[clear].float(), limits) == wanted.tolist()
        compared += int(clear.sum())
    assert compared > 1000


def test_gate_bits_depend_on_no_neighbour() -> None:
    """torch.sigmoid gives an element other bits in the vector body than in the tail."""
    seed = 77
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2000, generator=generator) * 4
    before = torch.rand(2000, generator=generator)
    limits = torch.rand(2000, generator=generator)

    def run(size: int) -> tuple[Tensor, Tensor]:
        parts = [
            Gate().decide(
                {"gate": gate.clone()},
                {"remaining": rest.clone()},
                {"exit_threshold": limit.clone()},
                torch.ones(len(gate), dtype=torch.int64),
            )
            for gate, rest, limit in zip(
                logits.split(size), before.split(size), limits.split(size), strict=True
            )
        ]
        leaves = torch.cat([part[0] for part in parts])
        return leaves, torch.cat([part[1]["remaining"] for part in parts])

    leaves, remaining = run(2000)
    for size in (1, 3, 7, 8, 16, 33, 256):
        again = run(size)
        assert torch.equal(again[0], leaves)
        assert torch.equal(again[1].view(torch.int32), remaining.view(torch.int32))


def test_gate_changes_no_argument() -> None:
    """A decision that updates its state in place is wrong as soon as the row is padded."""
    policy = Gate()
    (spec,) = policy.state(10, 4)
    assert (spec.name, spec.shape, spec.dtype, spec.initial) == ("remaining", (), "float32", 1.0)
    state = {"remaining": torch.full((3,), 0.5)}
    params = {"exit_threshold": torch.full((3,), 0.5)}
    signals = {"gate": torch.zeros(3)}
    _, new = policy.decide(signals, state, params, torch.ones(3, dtype=torch.int64))
    assert state["remaining"].tolist() == [0.5] * 3
    assert new["remaining"].tolist() == [0.25] * 3


def test_unreadable_gate_never_leaves() -> None:
    """NaN compares as neither side: the row must run on, to where its logits are checked."""
    logits = torch.tensor([[math.nan, 5.0, 5.0]])
    assert gate_depths(logits, torch.tensor([0.5])) == [0]


def test_fixed_never_leaves() -> None:
    """`fixed` beside `gate` in one tick must not take the gate's decision."""
    leaves, state = Fixed().decide({}, {}, {}, torch.arange(1, 9))
    assert leaves.dtype == torch.bool
    assert leaves.tolist() == [False] * 8
    assert not Fixed().state(10, 4)
    assert not state


def test_trace_leaves_at_the_recorded_depth() -> None:
    """A recorded depth replayed one loop late (depths count from 1)."""
    trace = torch.tensor([1, 2, 3, 4])
    for depth in (1, 2, 3, 4):
        leaves, _ = Trace().decide({}, {}, {"trace": trace}, torch.full((4,), depth))
        assert leaves.tolist() == [depth >= recorded for recorded in (1, 2, 3, 4)]
