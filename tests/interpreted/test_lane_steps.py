"""The fused steps of ticks in which a slot has several rows, against plain `refill` and against
the tick program in torch: the same answers, guesses and counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.plugins.plan import ExitMode
from rlt_core.runtime.batch import TickOutput
from rlt_core.runtime.lane_tick import LaneTick
from rlt_core.runtime.pipeline import PipelineProgram
from rlt_core.schedule.request import EngineRequest
from rlt_kernels.steps.lane_steps import TritonLaneSteps
from tests.engines import Built, Setup, build, greedy, plan_of, run_together
from tests.interpreted.test_steps import differences
from tests.test_pipeline import THRESHOLD, WRONG, oracle, scripted
from tests.tick_outputs import each_output

# numpy computes both sides of a `where`: -inf - -inf on the one that is not taken
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.timeout(180),
]


def fused(setup: Setup) -> Built:
    """An engine with its decode ticks in fused steps; the general program may run none of them."""
    built = build(setup)
    program = built.executor.program
    assert isinstance(program, PipelineProgram)
    has_coda = built.plan.shape.has_coda_layers
    built.executor._fused.decode = LaneTick(program, TritonLaneSteps(), has_coda=has_coda)
    inner = program.__call__

    def general(t: Any) -> Any:
        assert t.has_prompt or built.executor.emitter.needs.masks, "a decode tick was not fused"
        return inner(t)

    built.executor.program = general  # type: ignore[assignment]  # watched
    return built


def requests(setup: Setup) -> list[EngineRequest]:
    """Greedy and drawn ones, one with penalties, one with stop ids, more than slots."""
    vocab = plan_of(setup).shape.vocab_size
    kinds: list[tuple[int, dict[str, Any]]] = [
        (12, {"min_loops": 2}),
        (9, {"temperature": 0.9, "seed": 5}),
        (1, {}),
        (11, {"temperature": 0.7, "top_p": 0.8, "seed": 6, "repetition_penalty": 1.4}),
        (8, {"stop_ids": tuple(range(0, vocab, vocab // 16 + 1))}),
    ]
    return [
        greedy(i, [7 + i, 3, 60, 11, 5][: 1 + i], num, setup, exit_params=THRESHOLD, **fields)
        for i, (num, fields) in enumerate(kinds)
    ]


# model, layout, mode, draft depth, min_leave, pages (None: enough)
CASES: list[tuple[str, str, ExitMode, int, int, int | None]] = [
    ("ouro_b", "last_exited", "full", 0, 1, None),
    ("ouro_a", "no_fill", "skip", 1, 2, 40),
    ("tiny_b", "last_exited", "full", 1, 1, None),
]


@pytest.mark.parametrize(("model", "layout", "mode", "draft", "least", "pages"), CASES)
def test_fused_lanes_change_nothing(
    model: str, layout: str, mode: ExitMode, draft: int, least: int, pages: int | None
) -> None:
    """Rows that enter behind others, park, exit and are dropped; places for leaving rows and for
    guesses; drawn, penalised and bounded requests; codas that keep KV and those that do not."""
    setup = Setup(model=model, layout=layout, mode=mode, policy="gate", num_slots=3, page_size=4)
    made = requests(setup)
    wanted = run_together(build(setup), made)
    guessing = replace(
        setup,
        strategy="pipeline",
        draft_depth=draft,
        leave_places=2,
        min_leave=least,
        num_pages=pages,
    )
    general, steps = build(guessing), fused(guessing)
    told, found = run_together(general, made), run_together(steps, made)
    none: dict[int, list[str]] = {id_: [] for id_ in wanted}
    assert {id_: differences(told[id_], wanted[id_]) for id_ in wanted} == none
    assert {id_: differences(found[id_], wanted[id_]) for id_ in wanted} == none
    # ticks, parked and dropped rows, guesses that were checked and held
    counts = general.engine.counts
    assert steps.engine.counts == counts
    assert counts.early_rows
    assert (counts.parked_rows > 0) is (pages is not None)
    assert (counts.guesses_checked > counts.guesses_held) is (draft > 0)


@pytest.mark.parametrize(
    ("strategy", "mode", "wrong"),
    [("pipeline", "full", "every other"), ("adaptive", "skip", "two of three")],
)
def test_scripted_guesses(strategy: str, mode: ExitMode, wrong: str) -> None:
    """Guards the check in the tick that makes the next guess: where a front leaves and holds, the
    row behind it is guessed for at once, and nothing is where it does not. Drafts are counted as
    by the program in torch, tick by tick; under `adaptive` trust comes and goes, to the bit, and
    ticks of one row a slot stand between the others."""
    policy, fields = ("gate", {"exit_params": THRESHOLD}) if mode == "full" else ("fixed", {})
    setup = Setup(model="ouro_a", policy=policy, mode=mode, num_slots=2)
    made = [greedy(i, [7 + i, 3, 60], (13, 14)[i], setup, **fields) for i in range(2)]
    tokens = run_together(build(setup), made)[1].tokens
    right = [i for i in range(5, 12) if not WRONG[wrong](torch.tensor(3 + i))]
    # A right guess that is a stop id: nothing follows it.
    stop = next(i for i in right if tokens[i] not in tokens[:i])
    made[1] = replace(made[1], stop_ids=(tokens[stop],))
    wanted = run_together(build(setup), made)
    vocab = plan_of(setup).shape.vocab_size
    lines = [oracle([7 + i, 3, 60], wanted[i], vocab, WRONG[wrong]) for i in range(2)]

    def says(slot: Tensor, at: Tensor) -> Tensor:
        return torch.where(slot == 0, lines[0](slot, at), lines[1](slot, at))

    guessing = replace(setup, strategy=strategy, draft_depth=1)
    runs = []
    for make in (build, fused):
        built = make(guessing)
        scripted(built, says)
        by_turns(built, strategy == "adaptive")
        ticks = each_output(built, told)
        found = run_together(built, made)
        assert [differences(found[i], wanted[i]) for i in range(2)] == [[], []]
        runs.append((ticks, built.engine.counts, lanes_of(built)))
    (ticks, counts, lanes), (fused_ticks, fused_counts, fused_lanes) = runs
    assert fused_counts == counts
    assert fused_ticks == ticks
    for name, value in lanes.items():
        assert np.array_equal(fused_lanes[name], value), name


def by_turns(built: Built, asks: bool) -> None:
    """Let ticks ask for none, for one acceptance after another, for more than there is, and for
    just as much as slot 0 has if the guess in front of its next one holds."""
    inner, ticks, lanes = built.executor.submit, [0], built.executor.slots.lanes
    assert lanes is not None

    def submit(tick: Any) -> None:
        ticks[0] += 1
        turn, trust = ticks[0] % 5, float(lanes.trust[0])
        held = int(1000 * (trust + 0.1 * (1 - trust)))
        tick.least_acceptance = (2000, 560, held, held, 0)[turn] if asks else 0
        inner(tick)

    built.executor.submit = submit  # type: ignore[method-assign]  # the host's word, replaced


def told(out: TickOutput) -> tuple[Any, ...]:
    """Of a tick: its counts and, of each event, slot, token, depth, finish and drafts."""
    places = out.columns[0] >= 0
    drafts = None if out.drafts is None else out.drafts[:, places].tolist()
    return out.counts.tolist(), out.columns[:5, places].tolist(), drafts


def lanes_of(built: Built) -> dict[str, Any]:
    """What is left in the arrays by slot, the sentinel's aside."""
    slots = built.executor.slots
    lanes = slots.lanes
    assert lanes is not None
    arrays = {name: getattr(slots, name) for name in ("phase", "position", "token", "num_out")}
    arrays |= {"ahead": lanes.ahead, "trust": lanes.trust}
    return {name: value[:-1].numpy() for name, value in arrays.items()}
