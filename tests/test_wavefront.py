"""Prompt mode `wavefront`: chunks of a prompt at different depths beside each other."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlt_core.contract.errors import ConflictError
from rlt_core.contract.protocols import PromptView
from rlt_core.plugins.plan import ExitMode
from rlt_core.schedule.cell_starter import _waits_for_all
from rlt_core.schedule.forced import CellRules, forced_rows
from rlt_core.schedule.prompt_cells import Cell
from rlt_core.schedule.request import EngineRequest
from tests.engines import Setup, build, greedy, plan_of, run_alone, run_together
from tests.host_runs import LOOPS, VOCAB, HostRun, alone
from tests.selection import mostly_slow


def _prompt(length: int, max_tokens: int = 1, request_id: int = 0, **more: Any) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt=(np.arange(length) + request_id) % VOCAB,  # no two begin alike
        max_tokens=max_tokens,
        loops=LOOPS,
        max_loops=LOOPS,
        **more,
    )


def _ticks(run: HostRun, request: EngineRequest) -> int:
    """Ticks up to the one that gives the first output."""
    run.add(request)
    while not len((events := run.step()).request_id):
        pass
    run.finish()
    return events.tick + 1


@pytest.mark.parametrize(("length", "chunk"), [(40, 8), (41, 8), (7, 8), (12, 5), (9, 1)])
def test_a_prompt_takes_one_tick_a_chunk_and_its_depth_once(length: int, chunk: int) -> None:
    """Guards what the mode is for: ceil(P / C) + D - 1 ticks where chunks in turn take
    D ceil(P / C), with places for D chunks."""
    sizes: dict[str, Any] = {"chunk_size": chunk, "num_places": LOOPS * chunk, "max_len": 64}
    chunks = -(-length // chunk)
    assert _ticks(HostRun(prompts="wavefront", **sizes), _prompt(length)) == chunks + LOOPS - 1
    assert _ticks(HostRun(prompts="chunked", **sizes), _prompt(length)) == chunks * LOOPS


def test_fewer_places_only_take_longer() -> None:
    """Guards the row budget: no tick has more prompt rows than places, and nothing waits for
    ever where the places hold one chunk."""
    for places in (8, 12, 17, 24):
        run = HostRun(prompts="wavefront", chunk_size=8, num_places=places, max_len=64)
        taken = _ticks(run, _prompt(40))
        at_once = min(places // 8, LOOPS)
        assert taken <= -(-5 // at_once) * LOOPS + at_once, (places, taken)


def test_cells_of_two_prompts_share_the_places() -> None:
    """Guards the wait of prompts: a short one that comes while a long one's chunks fill the
    places begins within one chunk's loops, not after the long one."""
    run = HostRun(prompts="wavefront", chunk_size=4, num_places=16, max_len=256, num_pages=2000)
    run.add(_prompt(200))
    for _ in range(6):
        run.step()
    run.add(_prompt(4, request_id=1))
    waited = 0
    while 1 not in run.answers:
        run.step()
        waited += 1
    assert waited <= 2 * LOOPS + 2
    run.finish()


def _firsts(run: HostRun, lengths: list[int]) -> list[int]:
    """The ticks at which prompts of these lengths, handed over at once, gave a token."""
    run.add(*(_prompt(n, request_id=i) for i, n in enumerate(lengths)))
    found: dict[int, int] = {}
    while run.engine.has_work:
        events = run.step()
        found |= dict.fromkeys(events.request_id.tolist(), events.tick)
    return [found[i] for i in range(len(lengths))]


@pytest.mark.parametrize("mode", ["chunked", "wavefront"])
def test_one_prompt_ends_before_another_of_its_length_begins(mode: str) -> None:
    """Guards the first tokens of prompts that come together: in turn, chunk by chunk, all of them
    would have their first token at the end. The one with the least left goes first."""
    places = 8 if mode == "chunked" else LOOPS * 8
    sizes: dict[str, Any] = {"chunk_size": 8, "num_places": places, "num_slots": 4}
    alone = _firsts(HostRun(prompts=mode, max_len=96, num_pages=2000, **sizes), [64])[0] + 1
    run = HostRun(prompts=mode, max_len=96, num_pages=2000, **sizes)
    first, second, third, short = _firsts(run, [64, 64, 64, 8])
    assert short < first < second < third
    # Where one begins behind another the places are shared for the last one's loops.
    assert first + 1 <= alone + 2 * LOOPS
    assert second - first >= alone - 2 * LOOPS


def test_places_for_two_prompts_serve_two() -> None:
    """Guards what a prompt claims for its next cells: no more than its own do not give back."""
    sizes: dict[str, Any] = {"chunk_size": 8, "num_slots": 4, "max_len": 96, "num_pages": 2000}
    run = HostRun(prompts="wavefront", num_places=2 * LOOPS * 8, **sizes)
    assert _firsts(run, [64, 64]) == [8 + LOOPS - 2] * 2


def test_a_long_prompt_is_not_passed_by_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the wait of a long prompt among short ones that never end."""
    monkeypatch.setattr("rlt_core.schedule.cell_starter.AGE_TICKS", 10)
    run = HostRun(prompts="chunked", chunk_size=8, num_places=8, max_len=64, num_slots=4)
    run.add(_prompt(24))
    for i in range(1, 60):
        run.add(_prompt(8, request_id=i))
    ended: list[int] = []
    while 0 not in ended:
        ended += run.step().request_id.tolist()
    # Three chunks, each after so many ticks of others' at most.
    assert len(ended) <= 3 * (10 // LOOPS + 2) + 1
    run.finish()


@pytest.mark.parametrize("layout", ["last_exited", "last_step"])
@pytest.mark.parametrize("moment", range(8, 60, 9))
def test_a_preemption_in_the_grid_changes_nothing(layout: str, moment: int) -> None:
    """Guards chunks whose rows leave early in a replay: a shallow one behind a deep one must wait,
    or its coda would run first."""
    request = _prompt(10, 20)
    answers = []
    for preempts in (False, True):
        run = HostRun(layout=layout, prompts="wavefront", chunk_size=1, num_places=12)
        run.add(request)
        for _ in range(moment):
            run.step()
        if preempts:
            run.scheduler.preempt(0)
        answers.append(run.finish()[0])
    assert answers[0] == answers[1]


class Eager:
    """A prompt mode that always asks for a chunk."""

    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        return min(view.length - view.next_start, budget, chunk_size)


def test_a_mode_that_asks_too_early_changes_nothing() -> None:
    """Guards the dependency check itself: a chunk beside the one before it would read what that
    one has yet to write."""
    wanted = alone(_prompt(40, 5))
    run = HostRun(prompts="wavefront", chunk_size=4, num_places=40)
    run.scheduler._starter._mode = Eager()
    run.add(_prompt(40, 5))
    assert run.finish()[0] == wanted


@pytest.mark.parametrize("drops", [False, True])
def test_nothing_begins_past_the_prompt_before_its_planes_are_dropped(drops: bool) -> None:
    """Guards layouts that drop planes after the prompt and replay in chunks: none is the core's."""
    rules = CellRules(by_position=False, serial=False, drops=drops, alone=False)
    forced = forced_rows(
        _prompt(8),
        rules,
        full=False,
        tokens=np.arange(6, dtype=np.int32),
        depths=np.full(6, 2, np.int32),
        num_scored=0,
    )
    cell = Cell(None, forced, np.zeros((4, 1), np.int64), 4, 8, 0, 3)  # type: ignore[arg-type]  # no record
    assert _waits_for_all(forced, cell, 8) is drops


CASES = [
    (model, layout, mode)
    for model in ("tiny_a", "tiny_b", "ouro_a", "nanbeige_a", "huginn_a")
    for layout, mode in (("last_exited", "skip"), ("last_exited", "full"), ("last_step", "skip"))
]


@pytest.mark.parametrize(("model", "layout", "mode"), mostly_slow(CASES, CASES[0], CASES[5]))
def test_real_models_give_what_each_request_gets_alone(
    model: str, layout: str, mode: ExitMode, seed: int
) -> None:
    """Guards tokens, depths and the bits of the logits over grids with unequal last chunks, mixed
    with decode rows, for models with boundary layers (a column for prelude and coda each)."""
    draw = random.Random(seed)
    setup = Setup(model=model, layout=layout, mode=mode, policy="fixed")
    vocab = plan_of(setup).shape.vocab_size
    requests = [
        greedy(i, [draw.randrange(vocab) for _ in range(draw.choice((1, 9, 23, 40)))], 4, setup)
        for i in range(5)
    ]
    built = build(replace(setup, num_slots=1))
    wanted = {r.request_id: run_alone(built, r) for r in requests}
    grid = build(replace(setup, prompts="wavefront", chunk_size=5, num_places=21, num_slots=3))
    found = run_together(grid, requests)
    for request_id, answer in wanted.items():
        assert found[request_id].tokens == answer.tokens
        assert found[request_id].depths == answer.depths
        assert all(
            np.array_equal(a, b)
            for a, b in zip(found[request_id].logits, answer.logits, strict=True)
        )


def test_a_layout_whose_prompts_run_by_position_refuses_it() -> None:
    """Guards resolve: under `shared` a position needs all loops of the one before."""
    with pytest.raises(ConflictError, match="prompt_by_depth"):
        plan_of(Setup(layout="shared", prompts="wavefront"))
