"""Faults that others met in looped models or engines (CASES), against the whole engine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.contract.protocols import LoopContext, WeightedModel
from rlt_core.runtime.slots import READY, RUN
from rlt_core.schedule.request import ERROR, LENGTH
from tests.engines import Answer, Built, Setup, build, collect, greedy, load_model, run_together
from tests.reference import Exit, generate
from tests.selection import mostly_slow

OURO = Setup(model="ouro_a", policy="gate", page_size=4, chunk_size=7)
LOOPS = 4  # of the golden Ouros, which have 3 and 2 layers


def prompt_of(model: str, length: int, seed: int) -> list[int]:
    """Random token ids."""
    vocab = load_model(model)[0].vocab_size
    tokens: list[int] = np.random.default_rng(seed).integers(1, vocab, length).tolist()
    return tokens


def same(found: Answer, wanted: Answer) -> bool:
    """Equal tokens, depths and bits of logits."""
    bits = [[row.tobytes() for row in answer.logits] for answer in (found, wanted)]
    return (found.tokens, found.depths) == (wanted.tokens, wanted.depths) and bits[0] == bits[1]


def is_empty(built: Built) -> bool:
    """Whether every page is free again, and none lost."""
    built.scheduler.pages.check()
    return built.scheduler.pages.num_free == built.scheduler.pages.num_usable


def planes(built: Built, request_id: int) -> Tensor:
    """What a resident request's pages hold of the core: [planes, layers, k and v, positions, G,
    d]; NaN where nothing was written since the pages were given (debug is on)."""
    track = next(track for track in built.kv.tracks if track.per_depth)
    slot = built.scheduler.records[request_id].slot
    rows = built.executor.slots.tables[slot, track.first :].long()
    rows = rows[: track.num_planes * track.parts]
    rows = rows[:, : int((rows[0] > 0).sum())]
    assert bool((rows > 0).all()), "a plane lacks a page that another one has"
    pages = built.executor.pool.view(track.name)[rows]
    pages = pages.movedim(1, 3).flatten(3, 4)  # page after page is position after position
    found: Tensor = pages.unflatten(0, (track.num_planes, track.parts)).flatten(1, 2)
    return found


def written(built: Built, request_id: int) -> list[int]:
    """Rows that each plane holds; AssertionError where layers, or k and v, differ or have holes."""
    finite = planes(built, request_id).isfinite().all(-1).all(-1)
    rows = finite.sum(-1)
    assert bool((rows == rows[:, :1, :1]).all()), rows
    filled = torch.arange(finite.shape[-1]) < rows[..., None]
    assert torch.equal(finite, filled), "rows are missing in between"
    return [int(count) for count in rows[:, 0, 0]]


@pytest.mark.slow
def test_first_prompt_again_and_longer(seed: int) -> None:
    """CASES A4: masks counted the old keys only, so that the same prompt failed the second time."""
    short = prompt_of("ouro_a", 9, seed)
    longer = short[:7] + prompt_of("ouro_a", 12, seed + 1)
    # One slot and few places, so that every request gets those of the one before.
    setup = replace(OURO, num_slots=1, num_places=7)
    used = build(setup)
    for number, prompt in enumerate((short, short, short, longer)):
        fields: dict[str, Any] = {"exit_params": {"exit_threshold": 0.9}}
        request = greedy(number, prompt, 6, setup, **fields)
        found = run_together(used, [request])[number]
        assert same(found, run_together(build(setup), [request])[number]), number


def test_every_loop_of_every_layer_keeps_its_own_keys(seed: int) -> None:
    """CASES A1, A2: one cache slot per layer made the second loop overwrite the first."""
    setup = Setup(model="ouro_a", policy="fixed", page_size=4, ticks_in_flight=1)
    built, prompt = build(setup), prompt_of("ouro_a", 6, seed)
    built.engine.add(greedy(0, prompt, 5, setup))
    answers: dict[int, Answer] = {}
    while not answers:
        collect(answers, built.engine.step())
    keys = planes(built, 0)[:, :, 0, : len(prompt)].flatten(0, 1).flatten(1)
    assert keys.shape[0] == LOOPS * 3
    assert len(torch.unique(keys, dim=0)) == LOOPS * 3
    while built.engine.has_work:
        collect(answers, built.engine.step())
    wanted = generate(load_model("ouro_a")[1], prompt, 5, Exit(loops=LOOPS))
    assert answers[0].tokens == wanted.tokens


def test_all_planes_agree_on_the_length_between_loops(seed: int) -> None:
    """CASES A5, A15: a length read off one plane is wrong inside a token and after an exit, and
    deeper planes had holes, or old bytes, where a token had left early."""
    script = [4, 1, 3, 2, 4, 1, 4]
    setup = Setup(model="ouro_a", policy="trace", page_size=4, ticks_in_flight=1)
    built, prompt = build(setup), prompt_of("ouro_a", 6, seed)
    request = greedy(0, prompt, len(script), setup, trace=np.array(script, np.int32))
    alone = run_together(build(setup), [request])[0]
    built.engine.add(request)
    answers: dict[int, Answer] = {}
    seen, preempted, slots = set(), False, built.executor.slots
    while built.engine.has_work:
        collect(answers, built.engine.step())
        record = built.scheduler.records.get(0)
        if record is None or not record.resident:
            continue
        phase = int(slots.phase[record.slot])
        length, depth = int(slots.position[record.slot]), int(slots.depth[record.slot])
        if phase == READY:
            assert written(built, 0) == [length] * LOOPS
            kept, made = planes(built, 0), answers[0].tokens
            for index in range(1, len(made)):
                here, left = kept[..., len(prompt) + index - 1, :, :], script[index]
                for deeper in range(left, LOOPS):
                    assert torch.equal(here[deeper], here[left - 1]), (index, deeper)
            if len(made) == 4 and not preempted:
                built.scheduler.preempt(0)
                preempted = True
                assert is_empty(built), "some plane was not cut back with the others"
        elif phase == RUN:
            assert written(built, 0) == [length + 1] * depth + [length] * (LOOPS - depth)
            seen.add(depth)
    assert seen == {1, 2, 3}
    assert same(answers[0], alone)
    assert answers[0].depths == script
    assert is_empty(built)


@pytest.mark.parametrize("model", ["ouro_a", "ouro_b"])
def test_fewer_loops_than_the_model_has(model: str, seed: int) -> None:
    """CASES A6: three loops were four, cut short before the norm of the last."""
    setup = Setup(model=model, policy="fixed", page_size=4)
    prompt = prompt_of(model, 5, seed)
    requests = [greedy(loops, prompt, 6, setup, loops=loops) for loops in (1, 2, 3, 4)]
    answers = run_together(build(setup), requests)
    for loops, answer in answers.items():
        wanted = generate(load_model(model)[1], prompt, 6, Exit(loops=loops))
        assert answer.tokens == wanted.tokens
        assert answer.depths == [loops] * 6
        logits = torch.stack(wanted.logits).numpy()
        assert np.abs(np.stack(answer.logits) - logits).max() < 1e-4
    assert len({tuple(answer.tokens) for answer in answers.values()}) > 1


@pytest.mark.parametrize("dtype", mostly_slow(["float32", "bfloat16"], "bfloat16"))
def test_a_sure_gate_leaves_at_once_and_never_at_threshold_one(dtype: str) -> None:
    """CASES A9, A11: exits were ignored, or a gate of +40 left at loop 1 of 'full depth'."""
    setup = Setup(model="ouro_a", dtype=dtype, mode="full")
    for bias, threshold, depth in ((20.0, 0.5, 1), (40.0, 1.0, LOOPS), (40.0, 0.999, 1)):
        model = altered("ouro_a", dtype, {"model.early_exit_gate.bias": bias})
        fields: dict[str, Any] = {"exit_params": {"exit_threshold": threshold}}
        request = greedy(0, [5, 17, 3], 4, setup, **fields)
        assert run_together(build(setup, model), [request])[0].depths == [depth] * 4
        skip = Setup(model="ouro_a", dtype=dtype)
        found = run_together(build(skip, model), [greedy(0, [5, 17, 3], 4, skip, **fields)])[0]
        assert found.depths == [LOOPS] + [depth] * 3


def altered(name: str, dtype: str, weights: dict[str, float]) -> WeightedModel:
    """A copy of a model with some tensors filled with one value."""
    shape, model = load_model(name, dtype)
    make = cast(Callable[..., WeightedModel], type(model))
    copy = make(shape, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    for key, tensor in copy.weight_table().items():
        tensor.copy_(model.weight_table()[key])
        if key in weights:
            tensor.fill_(weights[key])
    return copy


@pytest.mark.parametrize("chunk_size", [5, 64])
def test_no_exit_in_the_prompt(chunk_size: int, seed: int) -> None:
    """CASES A13: an exit in the prompt left deeper planes of prompt positions unwritten, or gave
    the first token from a shallower state."""
    setup = Setup(model="ouro_a", page_size=4, chunk_size=chunk_size, ticks_in_flight=1)
    prompt = prompt_of("ouro_a", 16, seed)
    firsts: list[Answer] = []
    for threshold in (0.01, 1.0):
        built, answers = build(setup), dict[int, Answer]()
        fields: dict[str, Any] = {"exit_params": {"exit_threshold": threshold}}
        built.engine.add(greedy(0, prompt, 3, setup, **fields))
        while not answers:
            collect(answers, built.engine.step())
        assert written(built, 0) == [16] * LOOPS
        firsts.append(answers[0])
        while built.engine.has_work:
            collect(answers, built.engine.step())
        assert answers[0].depths == ([LOOPS, 1, 1] if threshold < 1 else [LOOPS] * 3)
    assert firsts[0].tokens[0] == firsts[1].tokens[0]
    assert firsts[0].logits[0].tobytes() == firsts[1].logits[0].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["refill", "cohort"])
def test_scripted_depths_in_any_company(strategy: str, seed: int) -> None:
    """CASES A14: a row that left kept its slot, lost its state to compaction, or told another
    row's depth."""
    script = [4, 1, 3, 2, 1]
    setup = Setup(model="ouro_a", policy="trace", page_size=4, strategy=strategy, num_slots=3)
    requests = []
    for i in range(5):
        depths = script[i:] + script[:i]
        prompt = prompt_of("ouro_a", 3 + i, seed + i)
        trace = np.array([LOOPS, *depths], np.int32)
        requests.append(greedy(i, prompt, 1 + len(depths), setup, trace=trace))
    alone = [run_together(build(setup), [request])[i] for i, request in enumerate(requests)]
    for i, answer in enumerate(alone):
        assert answer.depths == [LOOPS, *script[i:], *script[:i]]
    for gap in (0, 3):
        built = build(setup)
        answers, step, waiting = dict[int, Answer](), 0, list(requests)
        while waiting or built.engine.has_work:
            while waiting and step >= gap * (len(requests) - len(waiting)):
                built.engine.add(waiting.pop(0))
            collect(answers, built.engine.step())
            step += 1
        assert all(same(answers[i], alone[i]) for i in range(5)), gap
        assert is_empty(built)


@pytest.mark.slow
def test_memory_is_flat_over_two_hundred_requests(seed: int) -> None:
    """CASES A25: memory climbed with each request, and pages of ended ones stayed taken."""
    rng = np.random.default_rng(seed)
    setup = Setup(model="ouro_b", layout="last_step", num_slots=16, num_pages=200)
    built, answers, sizes = build(setup), dict[int, Answer](), []
    storage = built.executor.pool.storage
    before = (storage.data_ptr(), storage.nbytes)
    _every_count_of_rows(built, setup)
    for first in range(0, 200, 50):
        for i in range(first, first + 50):
            prompt = prompt_of("ouro_b", int(rng.integers(1, 20)), seed + i)
            request = greedy(i, prompt, int(rng.integers(1, 6)), setup)
            request.exit_params = {"exit_threshold": 0.5}
            request.repetition_penalty = 1.1
            built.engine.add(request)
        while built.engine.has_work:
            collect(answers, built.engine.step())
        assert is_empty(built)
        counted = len(answers)
        answers.clear()
        assert counted == 50
        sizes.append(tensor_bytes())
    assert (storage.data_ptr(), storage.nbytes) == before
    assert max(sizes) == sizes[0], sizes


def _every_count_of_rows(built: Built, setup: Setup) -> None:
    """Ticks of 16 decode rows down to 1: what is kept for each number of rows is there then."""
    late = {"exit_threshold": 1.0}
    for i in range(16):
        built.engine.add(greedy(1000 + i, [1, 2, 3], 2 + i, setup, exit_params=late))
    counts = set()
    while built.engine.has_work:
        built.engine.step()
        counts.add(sum(record.resident for record in built.scheduler.records.values()))
    assert counts >= set(range(1, 17))


def tensor_bytes() -> int:
    """Bytes of all tensors alive."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is Tensor]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


class Poisoned:
    """contract.protocols.LoopedModel whose state turns infinite at one position, in loop 2."""

    def __init__(self, inner: WeightedModel, position: int) -> None:
        self._inner, self._position = inner, position

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """The inner model's, but for one row."""
        hit = (ctx.positions == self._position) & (ctx.depth == 2)
        return self._inner.loop(state, ctx).masked_fill(hit[:, None], torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize(("position", "outputs"), [(8, 0), (13, 4)])
def test_an_infinite_state_fails_its_request_alone(position: int, outputs: int, seed: int) -> None:
    """CASES A29: an overflow in one row gave "!!!!" for ever, or spoilt the rows beside it, or
    those that got its pages afterwards."""
    setup = Setup(model="ouro_a", page_size=4, chunk_size=7, num_slots=3, num_pages=60)
    fields: dict[str, Any] = {"exit_params": {"exit_threshold": 1.0}}
    # Only the second one reaches the position.
    lengths, victim = (3, 10, 5, 2, 4, 1), 1
    requests = [
        greedy(i, prompt_of("ouro_a", n, seed + i), 7 if i == victim else 3, setup, **fields)
        for i, n in enumerate(lengths)
    ]
    assert max(n + 3 for i, n in enumerate(lengths) if i != victim) <= 8
    alone = {r.request_id: run_together(build(setup), [r])[r.request_id] for r in requests}
    model = cast(WeightedModel, Poisoned(load_model("ouro_a")[1], position))
    built = build(setup, model)
    answers = run_together(built, requests)
    failed = answers.pop(victim)
    assert failed.finish == ERROR
    assert failed.error
    assert failed.tokens == alone.pop(victim).tokens[:outputs]
    assert all(answer.finish == LENGTH for answer in answers.values())
    assert all(same(answers[i], wanted) for i, wanted in alone.items())
    assert is_empty(built)
    again = run_together(built, [requests[2]])[2]
    assert same(again, alone[2])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ouro_a", "tiny_a"])
def test_ragged_lengths_together(model: str, seed: int) -> None:
    """CASES A48: rows of a batch were padded to one length, and attended to the padding."""
    setup = Setup(model=model, page_size=16, chunk_size=16)
    fields: dict[str, Any] = {"exit_params": {"exit_threshold": 0.7}}
    requests = [
        greedy(i, prompt_of(model, length, seed + i), 4, setup, **fields)
        for i, length in enumerate((1, 7, 64))
    ]
    together = run_together(build(setup), requests)
    for i, request in enumerate(requests):
        assert same(together[i], run_together(build(setup), [request])[i]), i
