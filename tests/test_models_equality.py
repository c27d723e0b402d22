"""Huginn and Nanbeige in random workloads: a schedule changes no token, depth or bit of a logit.

The matrix itself (test_equality.py) runs on Ouro and the tiny models.
"""

from __future__ import annotations

import random

import pytest

from tests.matrix import check_meaning
from tests.pairwise import Row, cover
from tests.workloads import SCHEDULE, workable

SEED = 1
MEANINGS: list[Row] = [
    {"layout": "last_exited", "mode": "skip", "policy": "trace", "dtype": "float32"},
    {"layout": "last_exited", "mode": "full", "policy": "trace", "dtype": "bfloat16"},
    {"layout": "shared", "mode": "skip", "policy": "fixed", "dtype": "float32"},
    {"layout": "last_step", "mode": "skip", "policy": "trace", "dtype": "bfloat16"},
]


SCHEDULES = cover(SCHEDULE, lambda row: True, random.Random(SEED))
MODELS = ("huginn_a", "huginn_b", "nanbeige_b")
CASES = [(model, number) for model in MODELS for number in range(len(MEANINGS))]


def check(meaning: Row, model: str, schedules: list[Row]) -> None:
    """Compare workloads, each under another schedule, with the same requests one at a time."""
    meaning = {"model": model, **meaning}
    verdicts = check_meaning([{**meaning, **workable(meaning, row)} for row in schedules], SEED)
    wrong = [f"{verdict.row}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(300)
def test_a_workload() -> None:
    """The quick part, its seed fixed: mixed depths, parked rows and preemptions."""
    check(MEANINGS[0], "nanbeige_b", SCHEDULES[:1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("model", "number"), CASES)
def test_more_workloads(model: str, number: int) -> None:
    """Three tracks with unequal layers, a coda that stores KV once, held-back boundary work and
    start latents of each request's own seed, in every layout (A47, A48, A52).

    The cases share out the pairwise cover of schedules."""
    first = CASES.index((model, number))
    check(MEANINGS[number], model, SCHEDULES[first :: len(CASES)])
