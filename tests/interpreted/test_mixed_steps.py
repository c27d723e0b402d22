"""The fused steps of captured ticks with prompt rows against the tick program in torch: the same
answers, and the same told of every tick."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlt_core.runtime import mixed_inputs
from rlt_core.runtime.batch import TickOutput
from rlt_core.runtime.collect import Results
from rlt_core.runtime.decode_tick import DecodeTick
from rlt_core.runtime.fused_ticks import FusedTicks
from rlt_core.runtime.mixed_tick import MixedTick
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.schedule.request import EngineRequest
from rlt_kernels.steps import mixed_steps, row_steps
from rlt_kernels.steps.mixed_steps import TritonMixedSteps
from tests.engines import Answer, Built, Setup, build, greedy, run_together
from tests.interpreted.test_steps import differences
from tests.test_captured_ticks import counted
from tests.tick_outputs import each_output

# numpy computes both sides of a `where`: -inf - -inf on the one that is not taken
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.timeout(180),
]

SIZES: dict[str, Any] = {"num_slots": 3, "chunk_size": 5, "num_places": 15, "page_size": 4}
SETUPS = (
    Setup(model="ouro_b", policy="gate", prompts="wavefront", leave_places=1, **SIZES),
    Setup(model="ouro_a", policy="gate", mode="full", strategy="cohort", min_leave=2, **SIZES),
    Setup(model="ouro_b", layout="last_step", policy="kl", min_leave=3, **SIZES),
    Setup(model="tiny_b", layout="no_fill", policy="gate", strategy="cohort", **SIZES),
)


class Watched(MixedTick):
    """Knows which kinds of ticks it ran."""

    ran: Counter[str]

    def __call__(self, t: TickTensors) -> Results:
        self.ran["beside decode rows" if len(t.decode_slots) else "alone"] += 1
        self.ran["with ends" if t.leaves else "without"] += 1
        there = t.slot != self.slots.sentinel
        self.ran["forced rows of outputs"] += int((there & (t.rule == 1)).any())
        self.ran["rows that ask"] += int((there & (t.exit_at == 0)).any())
        return super().__call__(t)


def fused(built: Built) -> Watched:
    """The engine with captured ticks, all of them in fused steps, and products that leave rows
    out."""
    counted(built)
    executor, steps = built.executor, TritonMixedSteps()
    watched = Watched(executor.program, steps)
    watched.ran = Counter()
    executor._fused = FusedTicks(DecodeTick(executor.program, steps), watched)
    executor.sampling = (Needs(), Needs(full=True))
    executor.capture()
    watched.ran.clear()
    return watched


def requests(setup: Setup) -> list[EngineRequest]:
    """More than slots, prompts of several chunks, and a score, which has forced rows of generated
    positions, and rows that ask the policy."""
    made = []
    for i, length in enumerate((1, 11, 6)):
        fields: dict[str, Any] = {"exit_params": {"exit_threshold": (0.3, 0.5, 0.7)[i]}}
        if i == 1:
            fields |= {"temperature": 0.8, "seed": 5}
        if i == 2:
            fields |= {"stop_ids": tuple(range(0, 48, 5)), "repetition_penalty": 1.2}
        made.append(
            greedy(i, [(7 * i + 3 * j) % 40 for j in range(length)], 3 + i, setup, **fields)
        )
    # of several depths in every model here
    scored: dict[str, Any] = {"prompt": np.arange(3, 13), "exit_params": {"exit_threshold": 0.8}}
    return [*made, replace(made[0], request_id=9, kind="score", prompt_len=4, **scored)]


def told(out: TickOutput) -> tuple[Any, ...]:
    """Of a tick: its counts and its events, by slot."""
    events = out.columns[:5, out.columns[0] >= 0]
    return out.counts.tolist(), sorted(events.T.tolist())


def scores(answer: Answer) -> dict[int, tuple[int, float, bytes]]:
    """Depth, logprob and the bits of the logits of every scored position."""
    return {at: (depth, p, logits.tobytes()) for at, (depth, p, logits) in answer.scored.items()}


@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: f"{s.model}-{s.layout}-{s.mode}-{s.policy}")
def test_fused_prompts_change_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt rows that enter, exit, fill, end or stand still; their padding; decode rows beside
    them, and none; places that wait though prompts run; counts of several programs; forced rows of
    generated positions, and such that ask the policy."""
    for module, name, value in ((mixed_steps, "_ROWS", 8), (row_steps, "_FEW", 8)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(mixed_inputs, "NUM_ENDS", 3)  # empty places cost the interpreter time
    plain, steps = build(setup), build(setup)
    ticks, ran = each_output(plain, told), fused(steps).ran
    wanted = run_together(plain, requests(setup))
    fused_ticks = each_output(steps, told)
    found = run_together(steps, requests(setup))
    print(dict(ran), steps.engine.counts)
    assert {id_: differences(found[id_], wanted[id_]) for id_ in wanted} == {
        id_: [] for id_ in wanted
    }
    assert steps.engine.counts == plain.engine.counts
    assert fused_ticks == ticks
    assert ran["beside decode rows"]
    assert ran["with ends"]
    # Where the policy needs a head for every row, prompts alone have a padding row beside them, and
    # rows that ask are not captured.
    assert (ran["alone"] > 0) is (ran["without"] > 0) is (setup.policy != "kl")
    for kind in ("forced rows of outputs", "rows that ask"):
        assert (ran[kind] > 0) is (setup.policy != "kl"), kind
    assert scores(found[9]) == scores(wanted[9])
