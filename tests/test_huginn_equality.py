"""Huginn in random workloads: a schedule changes no token, no depth and no bit of a logit."""

from __future__ import annotations

import random

import pytest

from tests.matrix import check_meaning
from tests.pairwise import Row, cover
from tests.workloads import SCHEDULE

MEANINGS: list[Row] = [
    {"layout": "last_exited", "mode": "skip", "policy": "trace", "dtype": "float32"},
    {"layout": "last_exited", "mode": "full", "policy": "trace", "dtype": "bfloat16"},
    {"layout": "shared", "mode": "skip", "policy": "fixed", "dtype": "float32"},
    {"layout": "last_step", "mode": "skip", "policy": "trace", "dtype": "bfloat16"},
]


def check(meaning: Row, model: str, num_workloads: int, seed: int) -> None:
    """Compare workloads, each under another schedule, with the same requests one at a time."""
    schedules = cover(SCHEDULE, lambda row: True, random.Random(seed))
    rows = [{"model": model, **meaning, **row} for row in schedules[:num_workloads]]
    verdicts = check_meaning(rows, seed)
    wrong = [f"{verdict.row}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(300)
def test_a_few_workloads() -> None:
    """The quick part, its seed fixed: mixed depths, state seeds, parked rows and preemptions."""
    check(MEANINGS[0], "huginn_a", 2, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["huginn_a", "huginn_b"])
@pytest.mark.parametrize("meaning", MEANINGS)
def test_more_workloads(model: str, meaning: Row) -> None:
    """Three tracks with unequal layers, a coda that stores KV once, held-back boundary work and
    start latents of each request's own seed, in every layout (A47, A48, A52)."""
    check(meaning, model, 12, 1)
