"""One meaning of the equality matrix: answers alone, the anchor, workloads compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlt_core.contract.protocols import WeightedModel
from rlt_core.schedule.request import EngineRequest, TickCounts
from tests.engines import Answer, Setup, build, greedy, load_model, run_alone
from tests.pairwise import Row
from tests.reference import Exit, generate
from tests.workloads import MEANING, THRESHOLDS, differences, run, templates, workload

ANCHOR_PROMPT = 5
ANCHOR_OUTPUTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a workload showed: differences (none is right) and what it contained."""

    row: Row
    wrong: tuple[str, ...]
    counts: TickCounts


def meaning_of(row: Row) -> Row:
    """The part of a configuration that decides the tokens."""
    return {name: row[name] for name in MEANING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What the requests of one meaning get one at a time; `wrong`: how the anchor differs."""

    requests: list[EngineRequest]
    answers: list[Answer]
    wrong: tuple[str, ...]


def check_meaning(
    rows: Sequence[Row], seed: int, model: WeightedModel | None = None
) -> list[Verdict]:
    """Compare a workload for each configuration; all of one meaning.

    `model` replaces the engine's own, for planted faults; the reference keeps the right one.
    """
    alone = run_meaning(meaning_of(rows[0]), seed, model)
    return [check_row(row, alone, seed, model) for row in rows]


def run_meaning(meaning: Row, seed: int, model: WeightedModel | None = None) -> Alone:
    """The requests of a meaning and their answers alone; none where the anchor differs."""
    torch.set_num_threads(1)
    made, wrong = templates(meaning, seed), tuple(anchor(meaning, seed, model))
    if wrong:
        return Alone(requests=made, answers=[], wrong=wrong)
    setup = Setup(**meaning, num_slots=1, prefix_cache=False)  # type: ignore[arg-type]  # as drawn
    built = build(setup, model)
    answers = [run_alone(built, request) for request in made]
    return Alone(requests=made, answers=answers, wrong=())


def check_row(row: Row, alone: Alone, seed: int, model: WeightedModel | None = None) -> Verdict:
    """Compare one workload, which depends on row and seed only."""
    torch.set_num_threads(1)
    if alone.wrong:
        return Verdict(row=row, wrong=alone.wrong, counts=TickCounts())
    load = workload(row, alone.requests, random.Random(f"{seed} {row}"))
    found, counts = run(load, build(load.setup, model))
    return Verdict(row=row, wrong=tuple(differences(load, found, alone.answers)), counts=counts)


def anchor(meaning: Row, seed: int, model: WeightedModel | None = None) -> list[str]:
    """A short greedy answer against the brute-force reference, in float32."""
    setup = Setup(**{**meaning, "dtype": "float32"}, page_size=4)  # type: ignore[arg-type]  # as drawn
    if meaning["dtype"] != "float32":
        model = None
    shape, right = load_model(setup.model)
    draw = random.Random(seed)
    prompt = [draw.randrange(shape.vocab_size) for _ in range(ANCHOR_PROMPT)]
    script = [shape.loops, 1, 2, shape.loops, 1]
    trace = np.array(script, np.int32) if setup.policy == "trace" else None
    threshold = THRESHOLDS.get(setup.policy, (1.0, 1.0))[1]
    params = {"exit_threshold": threshold} if setup.policy in THRESHOLDS else {}
    most = 2 if setup.policy == "fixed" else shape.loops
    request = greedy(
        0, prompt, ANCHOR_OUTPUTS, setup, max_loops=most, trace=trace, exit_params=params
    )
    found = run_alone(build(setup, model), request)
    wanted = generate(
        right,
        prompt,
        ANCHOR_OUTPUTS,
        Exit(
            policy=setup.policy,
            threshold=threshold,
            trace=script,
            loops=shape.loops,
            max_loops=most,
        ),
        layout=setup.layout,
        full=setup.mode == "full",
    )
    if found.tokens != wanted.tokens or found.depths != wanted.depths:
        told = (found.tokens, found.depths, wanted.tokens, wanted.depths)
        return ["differs from the reference: {} {} for {} {}".format(*told)]
    error = float(
        (torch.as_tensor(np.stack(found.logits)) - torch.stack(wanted.logits)).abs().max()
    )
    # Float32 in another order, carried on by every output: a fault shows at once and is far larger.
    # test_reference.py holds the engine to 1e-4.
    return [] if error < 1e-2 else [f"logits differ from the reference by {error}"]
