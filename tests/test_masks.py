"""Drawing under masks: the parked-mask rule, whatever the schedule and however late a mask is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import I32, I64
from rlt_core.runtime.mask_rows import allows_any, num_words
from rlt_core.runtime.masks import SlotMasks
from rlt_core.schedule.masks import MaskBook
from rlt_core.schedule.request import ABORT, ERROR, LENGTH, EngineRequest, TickCounts
from rlt_core.schedule.slot_table import SlotTable
from tests.engines import Answer, Built, Setup, build, greedy, load_model, run_together
from tests.masked_runs import MaskedRun, allowed_after, late, masked
from tests.test_captured_ticks import captured, same, watch_padding

SETUPS = (
    Setup(model="ouro_b", policy="gate", num_slots=4, chunk_size=7),
    Setup(model="tiny_b", policy="gate", strategy="cohort", num_slots=4),
    Setup(model="ouro_a", policy="gate", mode="full", num_slots=3, ticks_in_flight=1),
    Setup(model="ouro_b", policy="fixed", layout="last_step", num_slots=3, leave_places=1),
    Setup(model="tiny_a", policy="kl", layout="shared", num_slots=4, min_leave=2),
    Setup(model="ouro_b", policy="gate", strategy="cohort", layout="no_fill", min_leave=3),
    Setup(model="ouro_b", policy="gate", strategy="pipeline", num_slots=4, chunk_size=7),
    Setup(model="tiny_b", policy="gate", strategy="pipeline", mode="full", num_slots=3),
)
NUM_OUTPUTS = 5


def requests(setup: Setup, seed: int) -> list[EngineRequest]:
    """More than slots: masked (even ids) and unmasked ones, greedy, sampled and penalised."""
    draw, vocab = random.Random(seed), load_model(setup.model)[0].vocab_size
    made = []
    for i in range(6):
        fields: dict[str, Any] = {}
        if setup.policy in ("gate", "kl"):
            fields["exit_params"] = {"exit_threshold": draw.choice((0.3, 0.6, 0.9))}
        if i % 4 > 1:
            fields |= {"temperature": 0.9, "seed": i, "top_k": draw.choice((0, 4))}
        if i % 3 == 0:
            fields |= {"repetition_penalty": 1.3, "logit_bias": {draw.randrange(vocab): 3.0}}
        prompt = [draw.randrange(vocab) for _ in range(draw.randint(1, 9))]
        request = greedy(i, prompt, NUM_OUTPUTS, setup, num_logprobs=2, **fields)
        made.append(request if i % 2 else masked(request, vocab))
    return made


def run_masked(
    built: Built, asked: list[EngineRequest], most_delay: int = 0, seed: int = 0
) -> dict[int, Answer]:
    """All answers; masks come up to most_delay steps late."""
    run = MaskedRun(built, delay=late(seed, most_delay))
    run.add(asked)
    return run.finish()


def alone(setup: Setup, asked: list[EngineRequest]) -> dict[int, Answer]:
    """Each request's answer with nothing else in the engine and every mask at once."""
    built = build(replace(setup, num_slots=1))
    found: dict[int, Answer] = {}
    for request in asked:
        found |= run_masked(built, [request])
        check_allowed(setup, request, found[request.request_id])
    return found


def check_allowed(setup: Setup, request: EngineRequest, answer: Answer) -> None:
    """Every token is one that its mask allows, and where nothing else counts the likeliest."""
    assert answer.finish == LENGTH, answer
    assert len(answer.tokens) == NUM_OUTPUTS
    if request.mask is None:
        return
    vocab = load_model(setup.model)[0].vocab_size
    for i, token in enumerate(answer.tokens):
        allowed = allowed_after(request.request_id, answer.tokens[:i], vocab)
        assert allowed[token], (request.request_id, i)
        if not (request.temperature or request.logit_bias):
            best = np.where(allowed, answer.logits[i], -np.inf).argmax()
            assert token == best, (request.request_id, i)


def assert_same(found: dict[int, Answer], wanted: dict[int, Answer]) -> None:
    assert {i: same(found[i], wanted[i]) for i in wanted} == dict.fromkeys(wanted, True)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: f"{s.model}-{s.strategy}-{s.layout}")
def test_a_schedule_changes_nothing(setup: Setup, seed: int) -> None:
    """Masked requests among others, masks at once and late, give what each gives alone: guards a
    mask of another output or slot, a row that goes on without one, a neighbour that a mask
    reaches. In a cohort the rest waits, and goes on."""
    asked = requests(setup, seed)
    wanted = alone(setup, asked)
    for most_delay in (0, 4):
        assert_same(run_masked(build(setup), asked, most_delay, seed), wanted)


def test_a_late_mask_parks_its_row_alone(seed: int) -> None:
    """The others go on: they are done before the first late mask comes, and their ticks tell how
    many rows stood parked. With nobody else the engine sleeps in place of empty ticks."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=4)
    asked = requests(setup, seed)[:3]
    built = build(setup)
    run = MaskedRun(built, delay=lambda: 200)
    run.add(asked)
    steps: dict[int, int] = {}

    def watch(step: int) -> None:
        for number, answer in run.answers.items():
            if answer.finish:
                steps.setdefault(number, step)

    run.calls = watch
    run.finish()
    assert steps[1] < 200 < steps[0]
    assert built.engine.counts.parked_rows > 5
    assert run.waits > 100 * (NUM_OUTPUTS - 1)
    assert built.engine.counts.ticks < 200


def test_nobody_sleeps_while_a_row_can_go_on() -> None:
    """One row that waits for its mask must not put the others to sleep, nor itself before its
    loops are done."""
    table = SlotTable(2, 10, TickCounts())
    book, both = MaskBook(table, 40, 4), np.array([0, 1])
    table._cursor[:] = (1, 11)  # one output each
    table.mask_index[0] = 0
    book._masked = {0}
    assert not book.all_wait(both, 100)
    assert book.all_wait(both[:1], 100)
    assert not book.all_wait(both[:1], 4)
    table.mask_index[:] = (1, 0)
    book._masked = {0, 1}
    assert not book.all_wait(both, 100)
    table.mask_index[:] = 0
    assert book.all_wait(both, 100)


def test_preemption_keeps_masks(seed: int) -> None:
    """A request that loses its slot while it is parked, or between a mask and its output, has the
    same mask when it is back; one that comes meanwhile is not lost."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=3, chunk_size=5)
    asked = requests(setup, seed)
    wanted = alone(setup, asked)
    for swap_pages in (0, 200):
        setup = replace(setup, swap_pages=swap_pages, prefix_cache=swap_pages > 0)
        draw, built = random.Random(f"{seed} {swap_pages}"), build(setup)
        run = MaskedRun(built, delay=late(seed, 6))
        run.add(asked)

        def preempt(step: int, built: Built = built, draw: random.Random = draw) -> None:
            if draw.random() < 0.25:
                built.scheduler.preempt(draw.randrange(len(asked)))

        run.calls = preempt
        assert_same(run.finish(), wanted)
        assert built.engine.counts.preemptions > 0
        assert (built.engine.counts.swaps > 0) == (swap_pages > 0)
        assert_empty(built)


def test_an_old_mask_is_ignored(seed: int) -> None:
    """A mask that comes again, or one that was overtaken, put in place of the latest: the row
    would wait for ever, or draw under it."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=3)
    asked = requests(setup, seed)
    wanted, built = alone(setup, asked), build(setup)
    put = built.engine.put_masks

    def again(request_id: I64, index: I64, words: I32) -> None:
        put(request_id, index, words)
        put(request_id, index - 1, np.roll(words, 1, 1) | 1)
        put(request_id, index, words | 1)

    built.engine.put_masks = again  # type: ignore[method-assign]  # an unsteady client
    assert_same(run_masked(built, asked, 2, seed), wanted)


def test_a_tiny_pool_changes_nothing(seed: int) -> None:
    """Rows parked for pages beside rows parked for masks, in a pool that holds one request and a
    half: nobody waits for ever."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=4, page_size=4, max_len=40)
    asked = requests(setup, seed)
    wanted = alone(setup, asked)
    rows = build(setup).kv.table_rows
    small = build(replace(setup, num_pages=1 + 12 * rows))
    assert_same(run_masked(small, asked, 5, seed), wanted)
    assert_empty(small)


def assert_empty(built: Built) -> None:
    """No page is held and no slot taken."""
    pages = built.scheduler.pages
    pages.check()
    assert pages.num_free == pages.num_usable
    assert not built.engine.has_work
    assert not built.scheduler.records


def test_an_abort_while_parked_frees_everything(seed: int) -> None:
    """A parked row's slot and pages, and the mask that comes after its end, which nobody wants."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=2)
    first, other, third = requests(setup, seed)[:3]
    built = build(setup)
    run = MaskedRun(built, delay=lambda: 10_000)
    run.add([first])
    while built.engine.has_work:
        run._step(0)
    assert [len(answer.tokens) for answer in run.answers.values()] == [1]
    assert built.scheduler.pages.num_free < built.scheduler.pages.num_usable
    built.engine.abort(0)
    assert built.engine.has_work
    run._step(0)
    assert run.answers[0].finish == ABORT
    assert_empty(built)
    words = np.full((1, num_words(built.plan.shape.vocab_size)), -1, np.int32)
    built.engine.put_masks(np.array([0]), np.array([1]), words)
    again = MaskedRun(built)
    again.add([other, third])
    assert_same(again.finish(), alone(setup, [other, third]))


def test_an_empty_mask_fails_its_request_alone(seed: int) -> None:
    """Nothing may be drawn: told so in words, with nobody else touched; bits past the vocabulary
    count for nothing."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=4)
    asked = requests(setup, seed)
    vocab = load_model(setup.model)[0].vocab_size
    empty = np.zeros(num_words(vocab), np.int32)
    if vocab % 32:
        empty[-1] = -1 << vocab % 32
    assert not allows_any(empty, vocab)
    built = build(setup)
    run = MaskedRun(built)
    run.add(asked)
    while len(run.answers.get(2, Answer()).tokens) < 2:
        run._send(1 << 30)
        run._step(0)
    built.engine.put_masks(np.array([2]), np.array([2]), empty[None])
    run._due = [entry for entry in run._due if entry[1] != 2]
    found, wanted = run.finish(), alone(setup, asked)
    assert found[2].finish == ERROR
    assert "lets no token through" in found[2].error
    assert "output 2" in found[2].error
    del wanted[2]
    assert_same(found, wanted)
    assert_empty(built)


def test_masks_that_cannot_be_are_refused() -> None:
    """A mask of another vocabulary, of a text to score, or for a request that has none would be
    read as something else, or wait for ever."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=2)
    built, plain = build(setup), greedy(0, [3], 2, setup, exit_params={"exit_threshold": 0.5})
    vocab = built.plan.shape.vocab_size
    right = masked(plain, vocab)
    assert right.mask is not None
    empty, long = np.zeros_like(right.mask), np.append(right.mask, right.mask)
    score = {"kind": "score", "prompt": np.array([1, 2])}
    for wrong in ({"mask": empty}, {"mask": long}, {"mask": right.mask, **score}):
        with pytest.raises(RequestError, match="mask"):
            built.engine.add(replace(plain, **wrong))
    built.engine.add(plain)
    built.engine.put_masks(np.array([0]), np.array([1]), right.mask[None])
    run = MaskedRun(built)
    assert "not sent as a masked one" in run.finish()[0].error
    assert_empty(built)


@pytest.mark.parametrize("number", range(3))
def test_captured_ticks_know_masks(number: int, seed: int) -> None:
    """A captured variant without masks that is replayed for a masked request, or rows of a padded
    tick that are masked or held."""
    setup = SETUPS[number]
    asked = requests(setup, seed)
    wanted = alone(setup, asked)
    built, ran = captured(build(setup))
    watch_padding(built)
    assert_same(run_masked(built, asked, 4, seed), wanted)
    assert ran["decode"] > 0
    assert "decode, eager" not in ran
    # Masks of requests that have left hold nobody back.
    others = [request for request in asked if request.mask is None]
    assert_same(run_together(built, others), {r.request_id: wanted[r.request_id] for r in others})


def test_words_are_read_bit_by_bit(seed: int) -> None:
    """Sign bits, the last word's rest, and slots without masks."""
    draw = np.random.default_rng(seed)
    for vocab in (1, 31, 32, 33, 100):
        masks = SlotMasks(2, vocab, torch.device("cpu"))
        allowed = draw.random(vocab) < 0.5
        padded = np.zeros(32 * num_words(vocab), bool)
        padded[:vocab] = allowed
        words = np.packbits(padded, bitorder="little").view("<i4").astype(np.int32)
        masks.words[1] = torch.from_numpy(words)
        masks.masked[1] = True
        found = masks.allowed(torch.tensor([2, 1, 0]))
        assert found[1].tolist() == allowed.tolist()
        assert bool(found[0].all())
        assert bool(found[2].all())
        assert allows_any(words, vocab) == bool(allowed.any())
