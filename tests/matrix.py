"""One meaning of the equality matrix: answers alone, the anchor, workloads compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlt_core.contract.protocols import WeightedModel
from rlt_core.schedule.request import TickCounts
from tests.engines import Setup, build, greedy, load_model, run_alone
from tests.pairwise import Row
from tests.reference import Exit, generate
from tests.workloads import MEANING, differences, run, templates, workload

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


def check_meaning(
    rows: Sequence[Row], seed: int, model: WeightedModel | None = None
) -> list[Verdict]:
    """Compare a workload for each configuration; all of one meaning.

    `model` replaces the engine's own, for planted faults; the reference keeps the right one.
    """
    torch.set_num_threads(1)
    meaning, draw = meaning_of(rows[0]), random.Random(f"{seed} {rows}")
    made = templates(meaning, seed)
    built = build(Setup(**meaning, num_slots=1), model)  # type: ignore[arg-type]
    alone = [run_alone(built, request) for request in made]
    anchored = anchor(meaning, seed, model)
    verdicts = []
    for row in rows:
        load = workload(row, made, draw)
        found, counts = run(load, build(load.setup, model))
        wrong = (*anchored, *differences(load, found, alone))
        verdicts.append(Verdict(row=row, wrong=wrong, counts=counts))
    return verdicts


def anchor(meaning: Row, seed: int, model: WeightedModel | None = None) -> list[str]:
    """A short greedy answer against the brute-force reference, in float32."""
    setup = Setup(**{**meaning, "dtype": "float32"}, page_size=4)  # type: ignore[arg-type]
    if meaning["dtype"] != "float32":
        model = None
    shape, right = load_model(setup.model)
    draw = random.Random(seed)
    prompt = [draw.randrange(shape.vocab_size) for _ in range(ANCHOR_PROMPT)]
    script = [shape.loops, 1, 2, shape.loops, 1]
    trace = np.array(script, np.int32) if setup.policy == "trace" else None
    params = {"exit_threshold": 0.5} if setup.policy == "gate" else {}
    most = 2 if setup.policy == "fixed" else shape.loops
    request = greedy(
        0, prompt, ANCHOR_OUTPUTS, setup, max_loops=most, trace=trace, exit_params=params
    )
    found = run_alone(build(setup, model), request)
    wanted = generate(
        right,
        prompt,
        ANCHOR_OUTPUTS,
        Exit(policy=setup.policy, threshold=0.5, trace=script, loops=shape.loops, max_loops=most),
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
