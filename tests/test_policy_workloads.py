"""Comparing policies in random workloads: a schedule changes no token, no depth and no bit."""

from __future__ import annotations

import random

import pytest

from tests.matrix import check_meaning
from tests.pairwise import Row, cover
from tests.workloads import SCHEDULE, workable

QUICK: list[Row] = [
    {"model": "tiny_a", "layout": "no_fill", "mode": "skip", "policy": "kl", "dtype": "float32"},
    {
        "model": "ouro_b",
        "layout": "no_fill",
        "mode": "skip",
        "policy": "cosine",
        "dtype": "float32",
    },
]
# model, layout, mode, policy, dtype; every policy with both dtypes, here or in the matrix.
MORE = [
    ("huginn_b", "no_fill", "skip", "latent", "bfloat16"),
    ("huginn_a", "last_exited", "full", "minp_kl", "float32"),
    ("huginn_a", "shared", "skip", "argmax", "bfloat16"),
    ("tiny_b", "last_exited", "full", "entropy", "bfloat16"),
    ("tiny_a", "last_step", "skip", "entropy", "float32"),
    ("ouro_a", "no_fill", "full", "minp_kl", "bfloat16"),
    ("tiny_b", "no_fill", "skip", "cosine", "bfloat16"),
]
SEED = 5
SCHEDULES = cover(SCHEDULE, lambda row: True, random.Random(SEED))


def check(meaning: Row, schedules: list[Row]) -> None:
    """Compare workloads, each under another schedule, with the same requests one at a time."""
    verdicts = check_meaning([{**meaning, **workable(meaning, row)} for row in schedules], SEED)
    wrong = [f"{verdict.row}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict.counts.early_rows for verdict in verdicts), "no exits drawn"


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("meaning", QUICK, ids=lambda row: str(row["policy"]))
def test_a_few_workloads(meaning: Row) -> None:
    """A quick look, its seed fixed: a peek that sees a neighbour's coda, a key that is hidden in
    one schedule and seen in another, a policy's state that outlives its row."""
    check(meaning, SCHEDULES[:1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("model", "layout", "mode", "policy", "dtype"), MORE)
def test_more_workloads(model: str, layout: str, mode: str, policy: str, dtype: str) -> None:
    """Every policy with Huginn's packed state and coda, Ouro's head alone, and modes and layouts
    that decide the last position of a prompt or replay one by one.

    The cases share out the pairwise cover of schedules."""
    case = (model, layout, mode, policy, dtype)
    names = ("model", "layout", "mode", "policy", "dtype")
    mine = SCHEDULES[MORE.index(case) :: len(MORE)]
    check(dict(zip(names, case, strict=True)), mine)
