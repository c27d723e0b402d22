"""The policies that compare a signal from loop to loop, on hand-made signals and in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor

from rlt_core.contract.protocols import ExitPolicy
from rlt_core.contract.specs import ExitPolicySpec
from rlt_core.exits.argmax import Argmax
from rlt_core.exits.cosine import Cosine
from rlt_core.exits.entropy import Entropy
from rlt_core.exits.kl import KL
from rlt_core.exits.latent import Latent
from rlt_core.exits.minp_kl import MinPKL
from rlt_core.exits.row_math import row_sum
from rlt_core.plugins.discovery import core_candidate
from rlt_core.plugins.registry import build_registry
from tests.criteria import BY_LOGITS, BY_STATE, CRITERIA

POLICIES: dict[str, Callable[[], ExitPolicy]] = {
    "latent": Latent,
    "cosine": Cosine,
    "entropy": Entropy,
    "kl": KL,
    "minp_kl": MinPKL,
    "argmax": Argmax,
}
TOTAL = 256
COUNTS = (1, 3, 7, 33)


def start(policy: ExitPolicy, rows: int, vocab: int) -> dict[str, Tensor]:
    """The state of rows that enter, as the core makes it."""
    return {
        spec.name: torch.full((rows, *spec.shape), spec.initial, dtype=getattr(torch, spec.dtype))
        for spec in policy.state(vocab, 8)
    }


def signals_at(name: str, values: Tensor, loop: int) -> dict[str, Tensor]:
    """values [loops + 1, R, N]: states from before the first loop, or logits from loop 1 on."""
    if name in BY_STATE:
        return {"state": values[loop], "state_before": values[loop - 1]}
    return {"logits": values[loop]}


def depths(name: str, values: Tensor, threshold: float) -> list[int]:
    """The depth at which each row leaves (0: never) over all loops of `values`."""
    policy, rows = POLICIES[name](), values.shape[1]
    state = start(policy, rows, values.shape[2])
    params = {"exit_threshold": torch.full((rows,), threshold)}
    left = torch.zeros(rows, dtype=torch.int64)
    for loop in range(1, len(values)):
        depth = torch.full((rows,), loop)
        leaves, new = policy.decide(signals_at(name, values, loop), state, params, depth)
        state = dict(new)
        left = torch.where((left == 0) & leaves, depth, left)
    return [int(depth) for depth in left]


def random_values(name: str, rows: int, width: int, seed: int, loops: int = 6) -> Tensor:
    """States or logits that settle, a row faster than another, as those of a looped model do."""
    draw = torch.Generator().manual_seed(seed)
    aim = torch.randn(rows, width, generator=draw) * 2
    pace = 0.2 + 0.6 * torch.rand(rows, 1, generator=draw)
    moves = torch.randn(loops + 1, rows, width, generator=draw) * 2
    return torch.stack([aim + move * pace**loop for loop, move in enumerate(moves)])


@pytest.mark.parametrize("name", POLICIES)
def test_against_the_formula_in_float64(name: str, seed: int) -> None:
    """A criterion with the distributions swapped, the wrong logarithm, or a start value of its
    own leaves at other depths. Rows within a millionth of the threshold are not compared."""
    values = random_values(name, 200, 37, seed)
    seen = set()
    wide = values.double() if name in BY_STATE else values.double()[1:]
    for threshold in (1, 2, 3) if name == "argmax" else (0.4, 0.1, 0.02, 0.004):
        found = depths(name, values, threshold)
        for row, depth in enumerate(found):
            wanted = CRITERIA[name](wide[:, row])
            says = [
                value >= threshold if name == "argmax" else value < threshold for value in wanted
            ]
            close = any(abs(value - threshold) < 1e-6 for value in wanted)
            if name == "argmax" or not close:
                assert depth == (says.index(True) + 1 if any(says) else 0), (row, threshold, wanted)
        seen |= set(found)
    assert len(seen) >= 4, "too few depths drawn"


def test_latent_by_hand() -> None:
    """The move is divided by the new length, and the first loop compares with the start state."""
    values = torch.tensor([[[3.0, 4.0]], [[3.0, 3.0]], [[3.0, 3.5]]])
    assert depths("latent", values, 0.24) == [1]  # 1 / sqrt(18) = 0.2357
    assert depths("latent", values, 0.2357) == [2]
    assert depths("latent", values, 0.1) == [0]  # 0.5 / sqrt(21.25) = 0.1085
    exact = torch.tensor([[[0.0, 6.0]], [[0.0, 8.0]]])
    assert depths("latent", exact, 0.25) == [0], "equality does not leave"
    assert depths("latent", torch.zeros(3, 1, 4), 10.0) == [0]


def test_cosine_by_hand() -> None:
    """Only the direction counts; a start from zeros (NaN) does not leave."""
    values = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]], [[2.0, 2.0]], [[5.0, 0.0]]])
    assert depths("cosine", values, 1e-5) == [2]
    assert depths("cosine", values[:2], 3.0) == [0]
    assert depths("cosine", values[2:], 0.29) == [0]  # 1 - cos 45 = 0.2929
    assert depths("cosine", values[2:], 0.30) == [1]


def test_entropy_by_hand() -> None:
    """The entropy before the first loop counts as 100 nats, and natural logarithms are meant."""
    two, four = [0.0, 0.0, -99.0, -99.0], [0.0] * 4
    values = torch.tensor([[four], [two], [two], [four]])
    assert depths("entropy", values, 1e-3) == [2]
    assert depths("entropy", values, 100.0) == [1]  # |0.693 - 100| = 99.3
    assert depths("entropy", values[1:], 0.6931) == [0]
    assert depths("entropy", values[[1, 1, 3]], 0.6932) == [2]  # ln 4 - ln 2 = 0.69315


def test_kl_by_hand() -> None:
    """KL(before, now), uniform before the first loop; the other way round is infinite here."""
    half, sure = [0.0, 0.0], [0.0, -math.inf]
    values = torch.tensor([[half], [half], [sure], [sure]])
    assert depths("kl", values[:2], 1e-6) == [1]
    assert depths("kl", values[1:], 1e9) == [2], "from half to sure infinite, from sure to sure 0"
    assert depths("kl", torch.tensor([[half], [sure], [half]]), 0.6931) == [0]
    assert depths("kl", torch.tensor([[half], [sure], [half]]), 0.6932) == [2]  # ln 2


def test_minp_kl_by_hand() -> None:
    """Unlikely tokens become 1 / V each, not 0 and not what they were."""
    a, b = [[math.log(p) for p in ps] for ps in ((0.9, 0.05, 0.03, 0.02), (0.9, 0.02, 0.03, 0.05))]
    values = torch.tensor([[a], [a], [b]])
    assert depths("kl", values, 1e-3) == [0]
    assert depths("minp_kl", values, 1e-9) == [2]
    # (0.9, .25, .25, .25) / 1.65 against uniform: ln(1/4) - mean of the logs = 0.18054
    assert depths("minp_kl", values[:2], 0.1805) == [0]
    assert depths("minp_kl", values[:2], 0.1806) == [1]


def test_argmax_by_hand() -> None:
    """The count begins at the second loop, starts again at a change, and ties go to the lowest."""
    tokens = [0, 2, 2, 1, 1, 1, 1]  # the first is never looked at
    values = torch.nn.functional.one_hot(torch.tensor(tokens), 3).float()[:, None]
    assert [depths("argmax", values, count) for count in (1, 2, 3, 4)] == [[2], [5], [6], [0]]
    assert depths("argmax", torch.zeros(3, 1, 5), 1) == [2]


@pytest.mark.parametrize("name", BY_LOGITS[:3])
def test_unreadable_logits_never_leave(name: str) -> None:
    """NaN compares as neither side: the row runs on, to where its logits are checked."""
    values = torch.full((4, 1, 5), math.nan)
    assert depths(name, values, 1e9) == [0]


@pytest.mark.parametrize("name", POLICIES)
def test_bits_depend_on_no_neighbour(name: str, seed: int) -> None:
    """A sum that takes another order with other rows beside it moves exits with the batch."""
    _compare_bits(name, random_values(name, TOTAL, 37, seed, 2))
    _compare_bits(name, random_values(name, TOTAL, 144, seed, 2))


def test_a_wide_row_alone_has_the_same_bits(seed: int) -> None:
    """Tensor.sum splits a single row of more than 32768 columns over two threads, which gives
    other bits than the same row among others."""
    wide = random_values("kl", 12, 49_152, seed, 1)[1].exp()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = row_sum(wide)
        alone = [row_sum(row[None])[0] for row in wide]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.stack(alone), together)


def _compare_bits(name: str, values: Tensor) -> None:
    together = _run(name, values)
    total = values.shape[1]
    for count in COUNTS:
        for first in (0, 1, (total - count) // 2, total - count):
            rows = slice(first, first + count)
            again = _run(name, values[:, rows].clone())
            for found, wanted in zip(again, together, strict=True):
                assert torch.equal(found, wanted[rows]), (count, first)


def _run(name: str, values: Tensor) -> list[Tensor]:
    """All that two loops leave: both decisions and the state, and the criterion's own bits."""
    policy, rows = POLICIES[name](), values.shape[1]
    state, out = start(policy, rows, values.shape[2]), list[Tensor]()
    params = {"exit_threshold": torch.full((rows,), 0.05)}
    for loop in (1, 2):
        depth = torch.full((rows,), loop)
        leaves, new = policy.decide(signals_at(name, values, loop), state, params, depth)
        state = dict(new)
        out += [leaves, *state.values()]
    return [*out, row_sum(values[2]), row_sum(values[1] * values[2])]


@pytest.mark.parametrize("name", POLICIES)
def test_no_argument_is_changed(name: str, seed: int) -> None:
    """A state updated in place is wrong as soon as the row is padded."""
    policy, values = POLICIES[name](), random_values(name, 5, 9, seed)
    state, params = start(policy, 5, 9), {"exit_threshold": torch.full((5,), 0.1)}
    given = {**signals_at(name, values, 1), **state, **params}
    copies = {key: tensor.clone() for key, tensor in given.items()}
    _, new = policy.decide(signals_at(name, values, 1), state, params, torch.ones(5).long())
    assert all(torch.equal(given[key], copies[key]) for key in given)
    assert {key: (t.shape, t.dtype) for key, t in new.items()} == {
        key: (t.shape, t.dtype) for key, t in state.items()
    }


def test_row_sum_is_a_sum(seed: int) -> None:
    """Halving drops no column, whatever the width."""
    draw = torch.Generator().manual_seed(seed)
    for width in (*range(1, 20), 127, 128, 129, 1000):
        x = torch.randint(-50, 50, (3, width), generator=draw).float()
        assert torch.equal(row_sum(x), x.sum(-1))


def _specs() -> Iterator[tuple[str, ExitPolicySpec]]:
    registry = build_registry([core_candidate()])
    return ((spec.id, spec) for spec in registry.all(ExitPolicySpec))


def test_defaults_and_ranges() -> None:
    """The authors' defaults; a threshold of 0 would never leave, and half a loop is no count."""
    found: Mapping[str, ExitPolicySpec] = dict(_specs())
    defaults = {name: found[name].params[0].default for name in POLICIES}
    assert defaults == {
        "latent": 0.03,
        "cosine": 1e-3,
        "entropy": 1e-3,
        "kl": 1e-3,
        "minp_kl": 1e-5,
        "argmax": 5,
    }
    for name in POLICIES:
        (param,) = found[name].params
        assert param.name == "exit_threshold"
        wanted = ("int", 1, False) if name == "argmax" else ("float", 0.0, True)
        assert (param.kind, param.minimum, param.exclusive_minimum) == wanted
