"""What the host puts off or does ahead of time: pages, outputs in the log, tables of left slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlt_core.contract.protocols import StrategyPlan, StrategyView
from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.slots import EMPTY, RUN, Slots
from rlt_core.schedule.request import EngineRequest
from rlt_core.schedule.strategies import Refill
from tests.host_runs import LOOPS, VOCAB, HostRun, alone

LAYOUTS = ["last_exited", "shared", "last_step"]
DEPTHS = ParamSpec(name="trace", kind="depths", summary="")


def _request(request_id: int, depths: list[int], prompt_len: int = 5) -> EngineRequest:
    """One output a depth, the first from the prompt."""
    rng = np.random.default_rng(request_id)
    return EngineRequest(
        request_id=request_id,
        prompt=rng.integers(0, VOCAB, prompt_len),
        max_tokens=len(depths),
        loops=LOOPS,
        max_loops=LOOPS,
        seed=request_id,
        trace=np.array(depths, np.int32),
    )


def _run(requests: list[EngineRequest], **sizes: Any) -> tuple[HostRun, dict[int, list[int]]]:
    """A finished run, and the ticks of each request's outputs."""
    run = HostRun(params=(DEPTHS,), **sizes)
    ticks: dict[int, list[int]] = {request.request_id: [] for request in requests}
    run.add(*requests)
    while run.engine.has_work:
        events = run.step()
        for request_id in events.request_id.tolist():
            ticks[request_id].append(events.tick)
    run.finish()
    return run, ticks


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_nobody_parks_while_pages_are_plenty(layout: str, page_size: int) -> None:
    """Guards pages reserved ahead: looked at a tick too late, or a new decode row overlooked,
    rows stand still for want of a page that is free. Rows that leave at loop 1 move fastest."""
    requests = [_request(i, [1] * (20 + 7 * (i % 4)), 1 + 3 * i) for i in range(9)]
    run, _ = _run(requests, layout=layout, page_size=page_size, num_pages=4000)
    assert run.counts.parked_rows == 0
    assert run.counts.preemptions == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nobody_gets_pages_that_it_never_needs(layout: str) -> None:
    """Guards pages reserved ahead past a request's end: they are another's room."""
    run = HostRun(params=(DEPTHS,), layout=layout, page_size=2, num_pages=4000)
    run.add(*(_request(i, [1] * (2 + 5 * (i % 4)), 3 + i) for i in range(9)))
    pages = run.scheduler.pages
    while run.engine.has_work:
        run.step()
        for record in run.scheduler.records.values():
            if record.resident:
                assert pages.columns[record.slot] <= -(-record.need // 2), record


@pytest.mark.parametrize("num", [1, 11])
def test_counts_are_those_of_the_outputs(num: int) -> None:
    """Guards waits and outputs that are lost in the log: the longest wait is that of a request's
    last output, whose slot has a new owner at once."""
    requests = [_request(i, [LOOPS, *[1] * (1 + i % 3), LOOPS]) for i in range(num)]
    run, ticks = _run(requests, num_slots=2)
    waits = [int(np.diff(given).max()) for given in ticks.values()]
    assert min(waits) >= LOOPS
    assert run.counts.max_wait_ticks == max(waits)
    assert run.counts.decode_rows == sum(map(len, ticks.values())) - len(requests)
    assert run.counts.slots_reused == max(num - 2, 0)


@pytest.mark.parametrize("num_between", range(2, 14, 3))
def test_a_resume_keeps_its_outputs_in_a_slot_just_left(num_between: int) -> None:
    """Guards outputs of a slot's former owner, still in the log, that are written over those of a
    request resumed there: seen when it is preempted again."""
    long, between = _request(0, [1] * 40), _request(1, [1] * num_between)
    between.priority = -1
    run = HostRun(params=(DEPTHS,), num_slots=1, num_places=64, chunk_size=64)
    run.add(long)
    _step_until(run, 0, 20)
    run.add(between)
    run.scheduler.preempt(0)
    _step_until(run, 1, num_between)
    _step_until(run, 0, 23)
    run.scheduler.preempt(0)
    assert run.finish()[0] == alone(long, params=(DEPTHS,))
    assert run.counts.preemptions == 2


@pytest.mark.parametrize("prompt_len", [0, 4])
def test_a_text_without_a_prompt_has_no_pages_of_dropped_planes(prompt_len: int) -> None:
    """Guards a score request that holds planes which only a prompt needs, and keeps them."""
    text = _request(0, [1] * 12, 12)
    text.kind, text.prompt_len = "score", prompt_len
    run = HostRun(params=(DEPTHS,), layout="last_step", page_size=2)
    run.add(text)
    run.step()
    pages, record = run.scheduler.pages, run.scheduler.records[0]
    rows = record.pages_prompt if prompt_len else record.pages_kept
    assert record.pages_kept < record.pages_prompt
    assert run.num_pages_used == int(pages.columns[record.slot]) * rows
    run.finish()


def _step_until(run: HostRun, request_id: int, num_outputs: int) -> None:
    while request_id not in run.answers or len(run.answers[request_id].outputs) < num_outputs:
        run.step()


def test_a_prompt_advances_with_each_cell() -> None:
    """Guards the waits of prompts: the loops of a cell are no wait, neither for the next cell nor
    for a request that is preempted in one."""
    run, _ = _run([_request(0, [1] * 3, 20)], chunk_size=8)
    assert run.counts.max_wait_ticks == 1
    run = HostRun(params=(DEPTHS,), num_places=4, chunk_size=4)
    run.add(_request(0, [1] * 3, 4), _request(1, [1] * 3, 4))
    _step_until(run, 0, 1)  # the second one has just got its places
    run.scheduler.preempt(1)
    run.finish()
    assert run.counts.preemptions == 1
    assert run.counts.max_queue_ticks < LOOPS


def test_rows_take_turns_when_a_strategy_lists_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards an order of turns that does not know the last outputs: the same rows go on and on."""

    def two_rows(self: Refill, view: StrategyView) -> StrategyPlan:
        return StrategyPlan(num_admissions=view.num_waiting, prompt_rows=16, decode_rows=2)

    monkeypatch.setattr(Refill, "plan", two_rows)
    run, ticks = _run([_request(i, [1] * 40) for i in range(6)], num_slots=6)
    assert all(len(given) == 40 for given in ticks.values())
    # Three pairs, each listed until its results are known.
    assert run.counts.max_wait_ticks <= 12


def test_a_cleared_slot_has_no_pages_on_the_device() -> None:
    """Guards the tables of a slot whose request ended: the host sends no change for them."""
    config = EngineConfig(
        num_slots=3,
        num_places=2,
        chunk_size=2,
        page_size=4,
        num_pages=9,
        max_len=8,
        max_depth=1,
    )
    slots = Slots(
        config,
        table_rows=2,
        table_width=config.table_width,
        state_width=1,
        vocab_size=3,
        dtype=torch.float32,
        device=torch.device("cpu"),
        full=False,
        hides=False,
        policy_state=(),
        policy_params=(),
    )
    slots.tables[:], slots.phase[:] = 5, RUN
    slots.clear(torch.tensor([0, 2]))
    assert slots.tables.flatten(1).sum(1).tolist()[::2] == [0, 0]
    assert bool((slots.tables[1] == 5).all())
    assert slots.phase.tolist() == [EMPTY, RUN, EMPTY, RUN]
