"""Comparing policies in random workloads: a schedule changes no token, no depth and no bit."""

from __future__ import annotations

import random

import pytest

from tests.matrix import check_meaning
from tests.pairwise import Row, cover
from tests.workloads import SCHEDULE

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
MORE: list[Row] = [
    {"model": "huginn_b", "layout": "no_fill", "mode": "skip", "policy": "latent"},
    {"model": "huginn_a", "layout": "last_exited", "mode": "full", "policy": "minp_kl"},
    {"model": "huginn_a", "layout": "shared", "mode": "skip", "policy": "argmax"},
    {"model": "tiny_b", "layout": "last_exited", "mode": "full", "policy": "entropy"},
    {"model": "tiny_a", "layout": "last_step", "mode": "skip", "policy": "entropy"},
    {"model": "ouro_a", "layout": "no_fill", "mode": "full", "policy": "minp_kl"},
    {"model": "tiny_b", "layout": "no_fill", "mode": "skip", "policy": "cosine"},
]
SEED = 5


def check(meaning: Row, num_workloads: int) -> None:
    """Compare workloads, each under another schedule, with the same requests one at a time."""
    schedules = cover(SCHEDULE, lambda row: True, random.Random(SEED))
    verdicts = check_meaning([{**meaning, **row} for row in schedules[:num_workloads]], SEED)
    wrong = [f"{verdict.row}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict.counts.early_rows for verdict in verdicts), "no exits drawn"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("meaning", QUICK, ids=lambda row: str(row["policy"]))
def test_a_few_workloads(meaning: Row) -> None:
    """The quick part, its seed fixed: a peek that sees a neighbour's coda, a key that is hidden in
    one schedule and seen in another, a policy's state that outlives its row."""
    check(meaning, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("meaning", MORE, ids=lambda row: f"{row['model']}-{row['policy']}")
def test_more_workloads(meaning: Row, dtype: str) -> None:
    """Every policy with Huginn's packed state and coda, Ouro's head alone, and modes and layouts
    that decide the last position of a prompt or replay one by one."""
    check({**meaning, "dtype": dtype}, 6)
