"""The fused steps of decode ticks against the tick program in torch: the same answers.

Tokens, depths, finish codes and the bits of the logits must agree; logprobs to float32's accuracy,
because the interpreter takes exp and log from numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlt_core.runtime.decode_tick import DecodeTick
from rlt_core.schedule.request import EngineRequest
from rlt_kernels.steps.steps import TritonSteps
from tests.engines import Answer, Built, Setup, build, greedy, run_together
from tests.test_captured_ticks import counted

# numpy computes both sides of a `where`: -inf - -inf on the one that is not taken
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.timeout(120),
]

SETUPS = (
    Setup(model="tiny_a", policy="gate", num_slots=3),
    Setup(model="tiny_a", mode="full", policy="gate", strategy="cohort", num_slots=3),
    Setup(model="ouro_b", layout="last_step", policy="gate", num_slots=3, min_leave=2),
    Setup(model="ouro_b", layout="shared", policy="fixed", num_slots=3, min_leave=3),
    Setup(model="ouro_b", layout="no_fill", policy="gate", num_slots=3, leave_places=1),
    Setup(model="ouro_b", policy="trace", strategy="cohort", num_slots=2, num_pages=25),
)


def fused(built: Built) -> Built:
    """The engine with its decode ticks in fused steps, and products that leave rows out."""
    counted(built)
    built.executor._fused.decode = DecodeTick(built.executor.program, TritonSteps())
    return built


def requests(setup: Setup) -> list[EngineRequest]:
    """More than slots: stop ids, sampled and greedy ones, several thresholds and depths."""
    made = []
    for i in range(4):
        fields: dict[str, Any] = {}
        if setup.policy == "gate":
            fields["exit_params"] = {"exit_threshold": (0.3, 0.5, 0.7)[i % 3]}
        if setup.policy == "trace":
            fields["trace"] = np.array([1 + (i + j) % 3 for j in range(24)], np.int32)
        if i == 1:
            fields |= {"temperature": 0.8, "seed": 5}
        if i == 2:
            fields["stop_ids"] = tuple(range(0, 48, 3))
        if i == 3:
            fields["min_loops"] = 2
        made.append(greedy(i, [1 + i, 2, 3 + i, 4][: 1 + i], 5, setup, **fields))
    return made


def differences(found: Answer, wanted: Answer) -> list[str]:
    wrong = [
        name
        for name in ("tokens", "depths", "finish")
        if getattr(found, name) != getattr(wanted, name)
    ]
    if any(a.tobytes() != b.tobytes() for a, b in zip(found.logits, wanted.logits, strict=True)):
        wrong.append("logits")
    if not np.allclose(found.logprobs, wanted.logprobs, rtol=0, atol=1e-5):
        wrong.append("logprobs")
    return wrong


@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: f"{s.model}-{s.layout}-{s.mode}-{s.policy}")
def test_fused_steps_change_nothing(setup: Setup) -> None:
    """Entering, parking, exits, fills, places for leaving rows, sampling, stop ids and limits."""
    wanted = run_together(build(setup), requests(setup))
    found = run_together(fused(build(setup)), requests(setup))
    assert found.keys() == wanted.keys()
    assert {id_: differences(found[id_], wanted[id_]) for id_ in wanted} == {
        id_: [] for id_ in wanted
    }


@pytest.mark.parametrize(("model", "captures"), [("ouro_b", True), ("tiny_b", False)])
def test_prompts_draw_with_the_same_launches(model: str, captures: bool) -> None:
    """First tokens, and those of decode rows beside prompts, where all are greedy and the steps are
    none of prompts: in padded ticks too, whose empty places have any token, which the next tick
    would look up."""
    setup = Setup(model=model, policy="fixed", num_slots=3, chunk_size=4)
    made = [greedy(i, [1 + i, 2, 3 + i, 4, 5, 6][: 2 + i], 4, setup) for i in range(4)]
    wanted = run_together(build(setup), made)
    built = fused(build(setup))
    emitter, drawn = built.executor.emitter, list[int]()
    draw = emitter.draw
    assert draw is not None

    def watched(*rows: Any) -> Any:
        drawn.append(len(rows[1]))
        return draw(*rows)

    emitter.draw = watched
    if captures:
        built.executor.capture()
    found = run_together(built, made)
    assert {id_: differences(found[id_], wanted[id_]) for id_ in wanted} == {
        id_: [] for id_ in wanted
    }
    assert drawn
