"""Strategy `pipeline`: tokens guessed ahead change nothing but the time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.contract.errors import ConflictError
from rlt_core.plugins.plan import ExitMode
from rlt_core.runtime.checks import CheckingEmitter
from rlt_core.schedule.request import ERROR, LENGTH, STOP, EngineRequest
from tests.engines import (
    Answer,
    Built,
    Setup,
    build,
    collect,
    greedy,
    load_model,
    plan_of,
    run_alone,
    run_together,
)
from tests.selection import mostly_slow

THRESHOLD = {"exit_threshold": 0.6}


def same(found: Answer, wanted: Answer) -> None:
    """Tokens, depths and every bit of the logits."""
    assert found.tokens == wanted.tokens
    assert found.depths == wanted.depths
    assert found.finish == wanted.finish
    assert np.array_equal(np.stack(found.logits), np.stack(wanted.logits))


def requests_of(setup: Setup, draw: random.Random, num: int) -> list[EngineRequest]:
    """Greedy and drawn ones, some with penalties, stop ids and bounds of their own."""
    vocab = plan_of(setup).shape.vocab_size
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.7, "top_p": 0.8, "seed": 6, "repetition_penalty": 1.4},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"stop_ids": tuple(range(0, vocab, vocab // 16 + 1))},
        {"min_loops": 2, "num_logprobs": 3},
    ]
    found = []
    for i in range(num):
        fields = dict(kinds[i % len(kinds)])
        if setup.policy != "fixed":
            fields["exit_params"] = {"exit_threshold": {"gate": 0.6, "latent": 0.6}[setup.policy]}
        prompt = [draw.randrange(vocab) for _ in range(draw.choice((1, 6, 19)))]
        found.append(greedy(i, prompt, draw.choice((1, 2, 9, 14)), setup, **fields))
    return found


CASES: list[tuple[str, str, str, str, int]] = [
    ("ouro_a", "last_exited", "skip", "gate", 1),
    ("ouro_b", "last_exited", "skip", "fixed", 2),
    ("ouro_b", "last_exited", "full", "gate", 0),
    ("ouro_a", "no_fill", "skip", "gate", 1),
    ("nanbeige_a", "last_exited", "skip", "fixed", 1),
    ("tiny_a", "last_exited", "skip", "latent", 1),
    ("tiny_b", "last_exited", "full", "gate", 1),
    ("tiny_b", "no_fill", "skip", "gate", 2),
    ("huginn_a", "last_exited", "skip", "latent", 4),
    ("huginn_a", "last_exited", "full", "fixed", 2),
]


@pytest.mark.parametrize(
    ("model", "layout", "mode", "policy", "draft"), mostly_slow(CASES, CASES[0], CASES[6])
)
def test_every_output_equals_plain_refills(
    model: str, layout: str, mode: ExitMode, policy: str, draft: int, seed: int
) -> None:
    """Guards the whole strategy: greedy and drawn, penalties, stop ids, limits, early exits, in
    every model with boundary layers or without; `refill`, one at a time, says what is right."""
    setup = Setup(model=model, layout=layout, mode=mode, policy=policy)
    requests = requests_of(setup, random.Random(seed), 7)
    one = build(replace(setup, num_slots=1))
    wanted = {r.request_id: run_alone(one, r) for r in requests}
    guessing = replace(setup, strategy="pipeline", draft_depth=draft, num_slots=3, leave_places=2)
    found = run_together(build(guessing), requests)
    for request_id, answer in wanted.items():
        same(found[request_id], answer)


def scripted(built: Built, says: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Let guesses be says(slot, position), int64 [R]."""
    emitter = built.executor.emitter
    assert isinstance(emitter, CheckingEmitter)
    emitter.replace = lambda own, slot, position: says(slot, position)


def oracle(prompt: list[int], answer: Answer, vocab: int, wrong: Callable[[Tensor], Tensor]) -> Any:
    """The right token of each position, or another one where `wrong` (bool of positions)."""
    line = torch.tensor([*prompt, *answer.tokens, *([0] * 96)])

    def says(slot: Tensor, position: Tensor) -> Tensor:
        right = line[position.clamp(max=len(line) - 1)]
        return torch.where(wrong(position), (right + 1) % vocab, right)

    return says


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "always": lambda position: torch.ones_like(position, dtype=torch.bool),
    "never": lambda position: torch.zeros_like(position, dtype=torch.bool),
    "every other": lambda position: position % 2 == 0,
    "two of three": lambda position: position % 3 > 0,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("mode", ["skip", "full"])
def test_wrong_and_right_guesses(wrong: str, mode: ExitMode) -> None:
    """Guards A44, A69 and A93: a draft that is always wrong costs time only, one that is always
    right gives a token a tick, and both are counted; what a dropped row wrote is never read."""
    setup = Setup(model="ouro_a", policy="fixed", mode=mode, num_slots=1)
    prompt, num = [5, 17, 3, 9, 40], 24
    request = greedy(0, prompt, num, setup)
    wanted = run_alone(build(setup), request)
    built = build(replace(setup, strategy="pipeline", draft_depth=1))
    scripted(built, oracle(prompt, wanted, plan_of(setup).shape.vocab_size, WRONG[wrong]))
    answers: dict[int, Answer] = {}
    ticks = first_and_last_tick(built, request, answers)
    same(answers[0], wanted)
    counts = built.engine.counts
    # The second token's row has nobody before it that could have guessed its input.
    assert counts.guesses_checked == num - 2
    right = sum(not WRONG[wrong](torch.tensor(len(prompt) + i)) for i in range(1, num - 1))
    assert counts.guesses_held == right
    loops = load_model("ouro_a")[0].loops
    assert ticks == (loops - 1) + (num - 2) + (loops - 1) * (num - 2 - right)


def first_and_last_tick(built: Built, request: EngineRequest, answers: dict[int, Answer]) -> int:
    """Ticks between the first and the last output."""
    seen = []
    built.engine.add(request)
    while built.engine.has_work:
        events = built.engine.step()
        seen += [events.tick] * len(events.request_id)
        collect(answers, events)
    return seen[-1] - seen[0] - 1


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 9])
def test_a_limit_at_every_place_of_the_flight(most: int) -> None:
    """Guards A69: with right guesses all along, max_tokens ends the answer wherever it falls among
    the rows in flight, and a stop id does; nothing enters behind it."""
    setup = Setup(model="ouro_a", policy="fixed", num_slots=1)
    prompt = [5, 17, 3]
    whole = run_alone(build(setup), greedy(0, prompt, 12, setup))
    vocab = plan_of(setup).shape.vocab_size
    stop = whole.tokens[most]
    first = whole.tokens.index(stop)
    for fields, tokens, finish in (
        ({}, whole.tokens[:most], LENGTH),
        ({"stop_ids": (stop,)}, whole.tokens[: first + 1], STOP),
    ):
        built = build(replace(setup, strategy="pipeline", draft_depth=1))
        scripted(built, oracle(prompt, whole, vocab, WRONG["never"]))
        request = greedy(0, prompt, 12 if fields else most, setup, **fields)
        answer = run_alone(built, request)
        assert answer.tokens == tokens
        assert answer.finish == finish
        assert built.engine.counts.wasted_loops == 0
        assert built.scheduler.pages.num_free == built.scheduler.pages.num_usable


@pytest.mark.parametrize("moment", range(3, 24, 4))
@pytest.mark.parametrize("ends", ["preempt", "abort"])
def test_a_flight_that_is_cut_off(moment: int, ends: str) -> None:
    """Guards preemption and abort with rows in flight: none of them comes back, none is lost that
    was committed, and the neighbour never notices."""
    setup = Setup(model="ouro_a", policy="gate", num_slots=2)
    made = [greedy(i, [7 + i, 3, 60], 16, setup, exit_params=THRESHOLD) for i in range(2)]
    one = build(replace(setup, num_slots=1))
    wanted = [run_alone(one, request) for request in made]
    built = build(replace(setup, strategy="pipeline", draft_depth=1))
    vocab = plan_of(setup).shape.vocab_size
    lines = [oracle([7 + i, 3, 60], wanted[i], vocab, WRONG["two of three"]) for i in range(2)]
    scripted(built, lambda slot, at: torch.where(slot == 0, lines[0](slot, at), lines[1](slot, at)))
    answers: dict[int, Answer] = {}
    for request in made:
        built.engine.add(request)
    for _ in range(moment):
        collect(answers, built.engine.step())
    getattr(built.scheduler, ends)(0)
    while built.engine.has_work:
        collect(answers, built.engine.step())
    same(answers[1], wanted[1])
    if ends == "preempt":
        same(answers[0], wanted[0])
    elif 0 in answers:
        assert answers[0].tokens == wanted[0].tokens[: len(answers[0].tokens)]
    assert built.scheduler.pages.num_free == built.scheduler.pages.num_usable


def test_a_failure_in_flight_ends_its_request_alone() -> None:
    """Guards A99: logits that are not finite end that request with an error, drop its rows and
    free its pages; the next request in the slot is served."""
    setup = Setup(model="ouro_a", policy="fixed", num_slots=1)
    wanted = run_alone(build(setup), greedy(1, [9, 9, 2], 8, setup))
    built = build(replace(setup, strategy="pipeline", draft_depth=1))
    program: Any = built.executor.program
    model = program.model._model
    head, calls = model.head, [0]

    def broken(state: Tensor, ctx: Any) -> Tensor:
        calls[0] += 1
        logits: Tensor = head(state, ctx)
        return logits * float("nan") if 20 < calls[0] < 40 else logits

    model.head = broken
    try:
        answer = run_alone(built, greedy(0, [5, 17, 3], 30, setup))
        assert answer.finish == ERROR
        assert len(answer.tokens) < 30
        assert built.scheduler.pages.num_free == built.scheduler.pages.num_usable
        calls[0] = 100
        same(run_alone(built, greedy(1, [9, 9, 2], 8, setup)), wanted)
    finally:
        model.head = head


@pytest.mark.parametrize("layout", ["shared", "last_step"])
def test_layouts_that_share_planes_refuse_it(layout: str) -> None:
    """Guards resolve: a row would overwrite what the one behind it has yet to read."""
    with pytest.raises(ConflictError, match="depths_apart"):
        plan_of(Setup(layout=layout, strategy="pipeline"))


def test_what_else_cannot_work_is_refused() -> None:
    """Guards resolve: logits of a coda that keeps KV, a draft at full depth, a depth for nobody."""
    with pytest.raises(ConflictError, match="guesses yet"):
        plan_of(Setup(model="tiny_a", policy="kl", strategy="pipeline"))
    with pytest.raises(ConflictError, match=r"before its last loop.*\nFix: --draft-depth 1"):
        plan_of(Setup(model="ouro_a", strategy="pipeline", draft_depth=4))
    with pytest.raises(ConflictError, match=r"guesses no tokens.*\nFix: \(without --draft-depth\)"):
        plan_of(Setup(model="ouro_a", strategy="refill", draft_depth=1))


def test_positions_still_on_their_way_are_not_shared() -> None:
    """Guards the prefix cache in mode full: rows that were read go on to full depth, and stop when
    their request ends; a later request with the same tokens must not find their pages."""
    setup = Setup(model="ouro_a", policy="trace", mode="full", num_slots=1, page_size=4)
    prompt, shallow = [5, 17, 3, 9, 40], np.ones(32, np.int32)
    first = greedy(0, prompt, 16, setup, trace=shallow)
    answer = run_alone(build(setup), first)
    again = greedy(1, [*prompt, *answer.tokens], 6, setup, trace=shallow)
    wanted = run_alone(build(setup), again)
    built = build(replace(setup, strategy="pipeline", draft_depth=0))
    same(run_alone(built, first), answer)
    same(run_alone(built, again), wanted)
    assert built.engine.counts.cache_hits


def test_a_guess_is_drawn_as_the_token_will_be() -> None:
    """Guards acceptance: the noise of the position, so that equal logits give equal tokens; and a
    guess that is a stop id enters nothing."""
    setup = Setup(model="ouro_a", policy="fixed", strategy="pipeline", num_slots=2)
    built = build(setup)
    for i in range(2):
        fields: dict[str, Any] = {"temperature": 1.0, "seed": i}
        built.engine.add(greedy(i, [5, 17], 9, setup, **fields))
    built.engine.step()
    emitter = built.executor.emitter
    assert isinstance(emitter, CheckingEmitter)
    slot, position = torch.tensor([0, 1]), torch.tensor([2, 40])
    logits = torch.rand(2, plan_of(setup).shape.vocab_size, generator=torch.Generator())
    with torch.inference_mode():
        drawn = emitter.sample(logits, slot, position).token
        assert torch.equal(emitter.guess(logits, slot, position), drawn)
        built.executor.slots.stop_ids[1, 3] = drawn[1]
        assert emitter.guess(logits, slot, position).tolist() == [int(drawn[0]), -1]
