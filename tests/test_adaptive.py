"""Strategy `adaptive`: who guesses, how many rows a tick has, and that no token depends on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlt_core.contract.protocols import StrategyView
from rlt_core.schedule.strategies import Adaptive
from rlt_core.schedule.traffic import Traffic
from rlt_core.schedule.trust import Trust
from tests.engines import Setup, build, greedy, plan_of, run_alone, run_together
from tests.test_pipeline import THRESHOLD, WRONG, oracle, same, scripted


def test_adaptive_guesses_where_it_pays() -> None:
    """Guards the break-even: with few rows any guess is worth its loops, with many only sure ones,
    and beyond that a tick has one row a slot; a row's cost follows the KV that it reads."""

    def least(slots: int, cost: float, lanes: int = 4) -> float:
        view = StrategyView(
            num_slots=256,
            num_free_slots=0,
            num_decode_slots=slots,
            num_prompt_requests=0,
            num_waiting=0,
            max_tick_tokens=64,
            num_lanes=lanes,
            row_cost=cost,
        )
        return Adaptive().plan(view).least_acceptance

    assert least(1, 0.0) == 0.0
    assert 0 < least(4, 0.05) < least(16, 0.05) < 1
    assert least(256, 0.5) > 1
    assert least(8, 0.05, lanes=1) == 0.0
    kv = build(Setup(model="ouro_a")).kv
    traffic = Traffic(kv, 1 << 20)
    assert traffic.row_cost(np.array([0, 100, 100], np.int32)) == traffic.row_cost(
        np.array([100], np.int32)
    )
    assert traffic.row_cost(np.array([200], np.int32)) > traffic.row_cost(np.array([100], np.int32))
    assert traffic.row_cost(np.zeros(3, np.int32)) == 0.0


@pytest.mark.parametrize(
    ("sure", "of", "wide"),
    [(0, 1, False), (1, 1, True), (1, 64, False), (16, 64, True), (64, 64, True)],
)
def test_ticks_are_wide_where_enough_requests_guess(sure: int, of: int, wide: bool) -> None:
    """Guards the rows of requests that do not guess: many of them cost more than a few win."""
    trust = np.zeros(256, np.float32)
    trust[:of] = 0.01
    trust[:sure] = 1.0
    view = StrategyView(
        num_slots=256,
        num_free_slots=256 - of,
        num_decode_slots=of,
        num_prompt_requests=0,
        num_waiting=0,
        max_tick_tokens=64,
        num_lanes=4,
        row_cost=0.01,
        trust=trust,
    )
    assert (Adaptive().plan(view).least_acceptance <= 1) is wide


def test_the_host_follows_the_device_s_trust() -> None:
    """Guards the host's count, by which ticks are wide or narrow: the device's, output by output,
    also after a slot has had another request."""
    setup = Setup(model="ouro_a", policy="fixed", num_slots=2, strategy="adaptive", draft_depth=1)
    built = build(replace(setup, ticks_in_flight=1))
    scripted(built, lambda slot, at: torch.where(slot == 0, 3, at % 60))
    for i in range(3):
        built.engine.add(greedy(i, [7 + i, 3, 60], (9, 30, 30)[i], setup))
    lanes = built.executor.slots.lanes
    assert lanes is not None
    seen = set()
    while built.engine.has_work:
        built.engine.step()
        for record in built.scheduler.records.values():
            if record.resident:
                told = built.scheduler._residency.trust.value[record.slot]
                assert told == lanes.trust[record.slot]
                seen.add(float(told))
    assert len(seen) > 5


@pytest.mark.parametrize("changes", ["never", "always", "by turns"])
def test_adaptive_changes_nothing_but_the_rows(changes: str) -> None:
    """Guards ticks of one row a slot between ticks of several: rows ahead stand still and go on
    later, and the tokens are plain refill's; a request that is never right stops guessing."""
    setup = Setup(model="ouro_a", policy="gate", num_slots=2)
    made = [greedy(i, [7 + i, 3, 60], 20, setup, exit_params=THRESHOLD) for i in range(2)]
    one = build(replace(setup, num_slots=1))
    wanted = [run_alone(one, request) for request in made]
    built = build(replace(setup, strategy="adaptive", draft_depth=1))
    vocab = plan_of(setup).shape.vocab_size
    lines = [oracle([7 + i, 3, 60], wanted[i], vocab, WRONG["two of three"]) for i in range(2)]
    scripted(built, lambda slot, at: torch.where(slot == 0, lines[0](slot, at), lines[1](slot, at)))
    inner, ticks = built.executor.submit, [0]

    def submit(tick: Any) -> None:
        ticks[0] += 1
        often = {"never": 2000, "always": 0, "by turns": 2000 * (ticks[0] // 3 % 2)}
        tick.least_acceptance = often[changes]
        inner(tick)

    built.executor.submit = submit  # type: ignore[method-assign]  # the host's word, replaced
    found = run_together(built, made)
    for i in range(2):
        same(found[i], wanted[i])
    checked = built.engine.counts.guesses_checked
    assert (checked == 0) is (changes == "never")


def test_a_request_that_is_never_right_stops_guessing() -> None:
    """Guards what is decided per request: its neighbour, always right, goes on."""
    setup = Setup(model="ouro_a", policy="fixed", num_slots=2)
    made = [greedy(i, [7 + i, 3, 60], 40, setup) for i in range(2)]
    one = build(replace(setup, num_slots=1))
    wanted = [run_alone(one, request) for request in made]
    built = build(replace(setup, strategy="adaptive", draft_depth=1))
    vocab = plan_of(setup).shape.vocab_size
    lines = [
        oracle([7 + i, 3, 60], wanted[i], vocab, WRONG[("always", "never")[i]]) for i in range(2)
    ]
    scripted(built, lambda slot, at: torch.where(slot == 0, lines[0](slot, at), lines[1](slot, at)))
    inner = built.executor.submit

    def submit(tick: Any) -> None:
        tick.least_acceptance = 500
        inner(tick)

    built.executor.submit = submit  # type: ignore[method-assign]  # the host's word, replaced
    found = run_together(built, made)
    for i in range(2):
        same(found[i], wanted[i])
    counts = built.engine.counts
    assert counts.guesses_held == 38
    assert counts.guesses_checked - counts.guesses_held < 20


def test_a_new_request_is_trusted_as_the_others_are() -> None:
    """Guards the cost of learning anew with every request what all before it have shown: one that
    comes after many wrong guesses hardly guesses; and the memory, which must let go of the past."""
    trust = Trust(4)
    slots, one = np.arange(3), np.ones(3, np.int64)
    assert trust.admit(3) == 1.0
    trust.follow(slots, np.array([1, 0, -1]))
    assert trust.admit(3) == pytest.approx(2 / 3)
    for _ in range(400):
        trust.follow(slots, 0 * one)
    assert 0 < trust.admit(3) < 0.02
    for _ in range(400):
        trust.follow(slots, one)
    assert trust.admit(3) > 0.98
    many = Trust(400)
    many.follow(np.arange(400), np.zeros(400, np.int64))
    assert 0 <= many.admit(0) < 0.01


def test_outputs_of_a_request_that_lost_its_slot_move_no_trust() -> None:
    """Guards the slot's next request: a wrong guess of one that was aborted, still in flight then,
    would count as its own."""
    setup = Setup(model="ouro_a", policy="fixed", num_slots=1, strategy="adaptive", draft_depth=1)
    built = build(replace(setup, ticks_in_flight=2))
    scripted(built, lambda slot, at: at % 60)
    num = 12
    for i in range(num):
        built.engine.add(greedy(i, [7 + i, 3, 60], 30, setup))
    trust, gone = built.scheduler._residency.trust, 0
    began: list[float] = []
    admit = trust.admit

    def told(slot: int) -> float:
        began.append(admit(slot))
        return began[-1]

    trust.admit = told  # type: ignore[method-assign]  # to know what each began with
    for request_id in range(num):
        # Aborted at every place between two outputs, with outputs told before.
        for step in range(14 + request_id):
            built.engine.step()
            # Its first output takes all loops, and what was in flight has come by then.
            assert step >= 2 or trust.value[0] == np.float32(began[-1]), (request_id, step)
        gone += bool(trust.value[0] != np.float32(began[-1]))
        built.scheduler.abort(request_id)
    assert gone == num
