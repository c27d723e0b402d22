"""The prefix cache over the fake device: a hit gives what the prompt would have computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlt_core.bench.synthetic import synthetic_kv, synthetic_plan
from rlt_core.contract.specs import ParamSpec
from rlt_core.kv.free_pages import FreePages
from rlt_core.kv.pages import HostPages
from rlt_core.kv.prefix import chain_keys
from rlt_core.schedule.record import State
from rlt_core.schedule.request import EngineRequest
from tests.host_runs import LOOPS, TRACKS, VOCAB, Answer, HostRun, alone, random_requests
from tests.selection import mostly_slow

DEPTHS = ParamSpec(name="trace", kind="depths", summary="")
CHOICES: list[dict[str, Any]] = [
    {"layout": "last_exited"},
    {"layout": "last_exited", "exit_mode": "full"},
    {"layout": "shared"},
    {"layout": "last_step"},
]
IDS = ["-".join(choice.values()) for choice in CHOICES]


def request(
    request_id: int, prompt: list[int], num_outputs: int = 4, **fields: Any
) -> EngineRequest:
    """Greedy by hash, at full loops; no stop ids."""
    loops = fields.pop("loops", LOOPS)
    return EngineRequest(
        request_id=request_id,
        prompt=np.array(prompt),
        max_tokens=num_outputs,
        loops=loops,
        max_loops=loops,
        **fields,
    )


def ask(run: HostRun, *requests: EngineRequest) -> list[Answer]:
    """The answers of requests that arrive at once."""
    run.add(*requests)
    run.finish()
    return [run.answers[r.request_id] for r in requests]


def cached(run: HostRun, asked: EngineRequest, **choice: Any) -> int:
    """Positions that a request found; AssertionError unless it got what it gets alone."""
    before = run.counts.cached_positions
    (answer,) = ask(run, asked)
    assert answer == alone(asked, prefix_cache=False, **choice)
    return run.counts.cached_positions - before


def tokens(length: int, seed: int = 1) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_whole_pages_are_found_and_one_position_is_computed(choice: dict[str, Any]) -> None:
    """The last position gives the first output and is computed in a page of its own: a prompt of
    whole pages must not be taken whole."""
    run = HostRun(**choice)
    wanted = {9: 8, 8: 4, 11: 8, 4: 0, 3: 0, 12: 8, 13: 12}
    assert cached(run, request(0, tokens(9)), **choice) == 0
    found = {n: cached(run, request(n, tokens(n)), **choice) for n in wanted}
    assert found == wanted


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_what_changes_the_kv_is_in_the_key(choice: dict[str, Any]) -> None:
    """CASES A81: prompts equal but for one id that differs by 256 (here: by the vocabulary's
    half), other loops, another state seed, other options."""
    run = HostRun(**choice)
    prompt = tokens(12)
    cached(run, request(0, prompt), **choice)
    half = VOCAB // 2
    near = [*prompt[:2], prompt[2] + (half if prompt[2] < half else -half), *prompt[3:]]
    assert cached(run, request(1, near), **choice) == 0
    assert cached(run, request(2, prompt, loops=LOOPS - 1), **choice) == 0
    assert cached(run, request(3, prompt, state_seed=1), **choice) == 0
    assert cached(run, request(4, prompt), **choice) == 8
    assert cached(run, request(5, [*prompt[:5], *near[:3], *prompt]), **choice) == 4


def test_mixed_hits_and_misses_in_one_tick() -> None:
    """CASES A81: a batch with a hit beside a miss, and blocks evicted and used again between."""
    run = HostRun(num_pages=16 * 6 + 1)
    prompt = tokens(17)
    ask(run, request(0, prompt))
    wanted = [request(1, prompt), request(2, tokens(17, 2)), request(3, prompt[:9])]
    assert ask(run, *wanted) == [alone(r, prefix_cache=False) for r in wanted]
    assert run.counts.cached_positions == 16 + 8
    for i in range(4, 9):
        assert cached(run, request(i, tokens(33, i))) == 0
    assert run.counts.cache_evictions > 0
    assert cached(run, request(9, prompt)) == 0


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_turns_of_a_conversation(choice: dict[str, Any]) -> None:
    """Generated pages are found when they ran to full depth; `last_step` has none. In mode full the
    coda's KV is of the depth that was read out, so that early outputs are not found either."""
    prompt = tokens(6)
    for depths, early in ((LOOPS, False), (2, True)):
        trace = np.full(30, depths, np.int32)
        run = HostRun(**choice, params=(DEPTHS,))
        first = request(0, prompt, 16, trace=trace)
        (answer,) = ask(run, first)
        turn = [*prompt, *(token for token, _, _ in answer.outputs), *tokens(5)]
        found = cached(run, request(1, turn, trace=trace), **choice, params=(DEPTHS,))
        # 6 prompt positions; the 15th output was the last input: 21 positions, 5 whole pages.
        assert found == (4 if early or choice["layout"] == "last_step" else 20)


def test_a_key_is_of_depths_and_tokens() -> None:
    """A page of other depths, or of the same bytes in another place, has another key."""
    ids = np.arange(8)
    full = np.full(8, 4)
    plain = chain_keys(b"root", ids, None, 4, 4)
    assert chain_keys(b"root", ids, full, 4, 4) == plain
    one_early = full.copy()
    one_early[5] = 3
    assert chain_keys(b"root", ids, one_early, 4, 4)[0] == plain[0]
    assert chain_keys(b"root", ids, one_early, 4, 4)[1] != plain[1]
    assert chain_keys(plain[0], ids[4:], None, 4, 4) == plain[1:]
    assert len(chain_keys(b"root", ids[:7], None, 4, 4)) == 1
    assert chain_keys(b"toor", ids, None, 4, 4)[1] != plain[1]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_siblings_share_the_prompt(choice: dict[str, Any]) -> None:
    """n answers of one prompt arrive together: one of them runs it, the others wait for its pages
    and find them; one that ends early gives the word on."""
    run = HostRun(**choice, num_slots=4, num_places=4, chunk_size=4)
    prompt = tokens(18)
    siblings = [request(i, prompt, 6, seed=i) for i in range(4)]
    assert ask(run, *siblings) == [alone(r, prefix_cache=False, **choice) for r in siblings]
    assert run.counts.stood_aside >= 3
    assert run.counts.cached_positions == 3 * 16
    run = HostRun(**choice, num_slots=4, num_places=4, chunk_size=4)
    run.add(*siblings)
    for _ in range(6):
        run.step()
    assert [run.scheduler.records[i].aside is not None for i in range(4)] == [False, *(True,) * 3]
    run.abort(0)
    run.abort(2)
    run.finish()
    for r in (siblings[1], siblings[3]):
        assert run.answers[r.request_id] == alone(r, prefix_cache=False, **choice)


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@pytest.mark.parametrize("num_outputs", [3, 14])
def test_a_preempted_request_finds_its_own_pages(choice: dict[str, Any], num_outputs: int) -> None:
    """Early exits too: what another prompt may not take, the request's own resume may."""
    run = HostRun(**choice)
    own = request(0, tokens(10), 20)
    run.add(own)
    while len(run.answers.get(0, Answer()).outputs) < num_outputs:
        run.step()
    run.scheduler.preempt(0)
    run.finish()
    assert run.answers[0] == alone(own, prefix_cache=False, **choice)
    outputs = 0 if choice["layout"] == "last_step" else num_outputs
    # One position less than is known: its row brings the request back.
    assert run.counts.cached_positions >= 4 * ((8 + outputs) // 4)
    # Depths differ from the prompt's: nobody else finds the outputs, and they are gone.
    assert run.scheduler.pages.shared.owned().size <= run.scheduler.pages.num_usable


def test_positions_whose_logprobs_are_wanted_are_computed() -> None:
    """Scores and prompt logprobs need the logits of every position."""
    run = HostRun()
    prompt = tokens(14)
    ask(run, request(0, prompt))
    assert cached(run, request(1, prompt, prompt_logprobs=0)) == 0
    assert len(run.answers[1].scores) == 13
    score = replace(request(2, prompt), kind="score", prompt_len=14)
    assert cached(run, score) == 0
    assert cached(run, request(3, prompt)) == 12


def test_a_stage_without_a_cache_finds_nothing() -> None:
    """The switch."""
    run = HostRun(prefix_cache=False)
    ask(run, request(0, tokens(12)), request(1, tokens(12)))
    ask(run, request(2, tokens(12)))
    counts = run.counts
    assert (counts.cache_queries, counts.cache_hits, counts.stood_aside) == (0, 0, 0)
    assert len(run.scheduler.pages.cache) == 0


def test_clients_are_told_once_what_was_found() -> None:
    """Of the first time that a request got a slot, and of nothing that it found of its own."""
    run = HostRun()
    told: list[tuple[int, int]] = []
    ask(run, request(0, tokens(12)))
    run.add(request(1, tokens(12), 12))
    while run.engine.has_work:
        events = run.step()
        told += zip(
            events.cached_request_id.tolist(), events.cached_positions.tolist(), strict=True
        )
        if len(told) == 1 and run.scheduler.records[1].state is State.DECODE:
            run.scheduler.preempt(1)
            told.append((-1, -1))
    assert told == [(1, 8), (-1, -1)]


@pytest.mark.parametrize("choice", mostly_slow(CHOICES, CHOICES[1], CHOICES[3]), ids=IDS)
def test_random_prompts_that_begin_alike(choice: dict[str, Any], seed: int) -> None:
    """Hits, misses, evictions, preemptions and aborts in any order: every request gets what it
    gets alone, shared pages are never written (the fake device looks), none is lost."""
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, VOCAB, 24) for _ in range(2)]
    requests = []
    for one in random_requests(rng, 24):
        stem = stems[int(rng.integers(2))][: int(rng.integers(1, 25))]
        requests.append(replace(one, prompt=np.concatenate((stem, one.prompt))[:28]))
        requests[-1].prompt_len = min(requests[-1].prompt_len, len(requests[-1].prompt))
    rows = 3 if choice["layout"] == "shared" else 6
    pages = -(-48 // 4) * rows + 1 + int(rng.integers(0, 30))
    run = HostRun(**choice, num_slots=5, num_pages=pages, chunk_size=int(rng.choice([3, 8])))
    aborted, waiting = {3, 9, 15}, list(requests)
    while waiting or run.engine.has_work:
        while waiting and rng.random() < 0.3:
            run.add(waiting.pop(0))
        for id_ in sorted(aborted):
            if id_ in run.scheduler.records and rng.random() < 0.1:
                run.abort(id_)
        live = list(run.scheduler.records)
        if live and rng.random() < 0.05:
            run.scheduler.preempt(live[int(rng.integers(len(live)))])
        run.step()
        run.scheduler.pages.check()
    run.finish()
    print(run.counts)
    for one in requests:
        if one.request_id not in run.aborted:
            assert run.answers[one.request_id] == alone(one, prefix_cache=False, **choice), one
    assert run.counts.cache_hits > 0


def test_a_block_is_held_until_its_last_reader_leaves() -> None:
    """CASES A67: freed for the first reader that leaves, read by the second. Also where decoding
    keeps a part of it: what nobody keeps goes at once, the rest when the last one leaves."""
    plan = synthetic_kv(synthetic_plan(layout="last_step", tracks=TRACKS), page_size=4)
    dropped = LOOPS - 1
    pages = HostPages(plan, 3, 8, 17)
    pages.admit(0, LOOPS, 4)
    pages.publish(0, [b"a"])
    block = pages.cache.get(b"a")
    assert block is not None
    pages.admit(1, LOOPS, 4, chain=[block])
    free = pages.num_free
    pages.free(0)
    assert pages.num_free == free, "a page in use was given away"
    assert np.array_equal(pages.held(1, 1), block.pages)
    pages.admit(2, LOOPS, 4, chain=[block])
    for slot in (1, 2):
        pages.drop_planes(slot)
    pages.check()
    assert pages.num_free == free + dropped
    pages.admit(0, LOOPS, 8)  # takes the planes that were dropped
    pages.check()
    assert pages.cache.get(b"a") is None
    held = set(pages.held(1, 1).tolist())
    assert held == set(pages.held(2, 1).tolist())
    assert not held & set(pages.held(0, 2).tolist())
    pages.free(1)
    pages.check()
    assert set(pages.held(2, 1).tolist()) == held
    before = pages.num_free
    pages.free(2)
    pages.check()
    assert pages.num_free == before + len(held)


@pytest.mark.parametrize("ticks_in_flight", [1, 2])
def test_every_page_is_given_back_once(
    ticks_in_flight: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES A65: a request ends while the next tick is submitted already; retired twice, its pages
    belong to two requests afterwards, and never, they are lost."""
    right = FreePages.push

    def push(self: FreePages, freed: Any) -> None:
        assert not np.isin(freed, self.empty).any(), "a page is given back twice"
        right(self, freed)

    monkeypatch.setattr(FreePages, "push", push)
    rng = np.random.default_rng(seed)
    run = HostRun(num_pages=150, ticks_in_flight=ticks_in_flight)
    run.add(*random_requests(rng, 16))
    while run.engine.has_work:
        run.step()
        run.scheduler.pages.check()
    run.finish()
