"""Too few pages: priorities, ageing, preemption by swap or by computing again, and no livelock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlt_core.kv.accounting import request_pages
from rlt_core.schedule.ageing import AGE_TICKS, MOST_LEVELS, aged_priority
from rlt_core.schedule.record import State
from rlt_core.schedule.request import EngineRequest
from tests.engines import Answer as EngineAnswer
from tests.engines import Setup, build, collect, greedy, run_alone
from tests.host_runs import LOOPS, VOCAB, HostRun, alone
from tests.selection import mostly_slow
from tests.test_prefix_cache import CHOICES, IDS


def requests(num: int, seed: int, *, num_outputs: int = 24) -> list[EngineRequest]:
    """Of mixed priorities, sampling and early exits; some prompts begin alike."""
    rng = np.random.default_rng(seed)
    stem = rng.integers(0, VOCAB, 9)
    return [
        EngineRequest(
            request_id=i,
            prompt=np.concatenate((stem, rng.integers(0, VOCAB, 3)))[-12 + 9 * (i % 2) :],
            max_tokens=num_outputs,
            loops=LOOPS,
            max_loops=LOOPS,
            temperature=1.0,
            seed=7 + i,
            priority=int(rng.integers(-1, 3)),
        )
        for i in range(num)
    ]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("swap_pages", [0, 400])
def test_eight_requests_in_a_pool_for_one_and_a_half(
    choice: dict[str, Any], prefix_cache: bool, swap_pages: int, seed: int
) -> None:
    """CASES A59, A82: tokens and depths as in a pool without bound; no endless ping-pong: nobody
    loses its slot more often than its neighbours' columns can be halved."""
    asked = requests(8, seed)
    rows = 3 if choice["layout"] == "shared" else 6
    pages = int(1.5 * -(-36 // 4) * rows) + 1
    run = HostRun(
        **choice,
        num_slots=8,
        num_pages=pages,
        prefix_cache=prefix_cache,
        swap_pages=swap_pages,
    )
    run.add(*asked)
    lost: dict[int, int] = {}
    while run.engine.has_work:
        run.step()
        lost |= {i: r.num_preempted for i, r in run.scheduler.records.items()}
    run.finish()
    print(lost, run.counts)
    for one in asked:
        assert run.answers[one.request_id] == alone(one, prefix_cache=False, **choice), one
    assert max(lost.values()) <= 5
    if swap_pages and choice["layout"] != "last_step":
        assert run.counts.swaps > 0


REAL = [
    Setup(model="ouro_a", policy="gate", swap_pages=400),
    Setup(model="ouro_a", policy="gate"),
    Setup(model="ouro_b", mode="full", policy="gate", dtype="bfloat16", swap_pages=400),
    Setup(model="tiny_b", layout="last_step", policy="gate", swap_pages=400),
    Setup(model="tiny_a", layout="shared", policy="gate", swap_pages=60, prefix_cache=False),
    Setup(model="huginn_a", policy="latent", swap_pages=400),
    Setup(model="nanbeige_b", policy="fixed", dtype="bfloat16", swap_pages=60),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "setup",
    mostly_slow(REAL, REAL[0]),
    ids=lambda s: f"{s.model}-{s.layout}-{s.mode}-{s.swap_pages}",
)
def test_the_same_on_real_models(setup: Setup) -> None:
    """Tokens, depths and bits of the logits; seeded sampling goes on where it was (CASES A59)."""
    draw, num_outputs = np.random.default_rng(5), 7
    params = {"exit_params": {"exit_threshold": 0.6}} if setup.policy != "fixed" else {}
    stem = draw.integers(1, 40, 4).tolist()
    asked = [
        greedy(
            i,
            (stem if i % 2 else []) + draw.integers(1, 40, 2).tolist(),
            num_outputs,
            setup,
            priority=i % 3,
            seed=7,
            temperature=float(i % 2),
            **params,
        )
        for i in range(8)
    ]
    large = build(replace(setup, num_slots=1, prefix_cache=False))
    wanted = [run_alone(large, one) for one in asked]
    kv = build(replace(setup, page_size=4)).kv
    most = max(
        request_pages(kv, r.loops, len(r.prompt), len(r.prompt) + num_outputs) for r in asked
    )
    small = build(replace(setup, page_size=4, num_slots=8, num_pages=1 + most * 3 // 2))
    found: dict[int, EngineAnswer] = {}
    for one in asked:
        small.engine.add(one)
    steps = 0
    while small.engine.has_work:
        collect(found, small.engine.step())
        steps += 1
        decoding = [i for i, r in small.scheduler.records.items() if r.state is State.DECODE]
        if steps % 9 == 0 and decoding:  # beside those that lack pages
            small.scheduler.preempt(decoding[-1])
    print(small.engine.counts)
    assert small.engine.counts.preemptions > 0
    assert (small.engine.counts.swaps > 0) == (setup.swap_pages > 0)
    for i, want in enumerate(wanted):
        assert _same(found[i], want), i
    pages = small.scheduler.pages
    pages.check()
    assert pages.num_free == pages.num_usable


def _same(found: EngineAnswer, wanted: EngineAnswer) -> bool:
    bits = [[row.tobytes() for row in answer.logits] for answer in (found, wanted)]
    return (found.tokens, found.depths) == (wanted.tokens, wanted.depths) and bits[0] == bits[1]


def test_a_request_is_not_starved_by_urgent_ones() -> None:
    """Urgent requests keep coming, more than there is room for: one of a lower priority gets its
    turn after AGE_TICKS a level."""
    run = HostRun(num_slots=2)
    fields: dict[str, Any] = {"max_tokens": 40, "loops": LOOPS, "max_loops": LOOPS}
    prompt = np.arange(4)
    low = EngineRequest(request_id=0, prompt=prompt, priority=2, **fields)
    for i in range(1, 4):
        run.add(EngineRequest(request_id=i, prompt=prompt, seed=i, **fields))
    run.add(low)
    arrived, begun = 4, -1
    while begun < 0:
        while len(run.scheduler.records) < 4:
            run.add(EngineRequest(request_id=arrived, prompt=prompt, seed=arrived, **fields))
            arrived += 1
        run.step()
        if run.scheduler.records[0].resident:
            begun = run.counts.ticks
        assert run.counts.ticks < 2 * AGE_TICKS + 600, "starved"
    print(f"{arrived} urgent ones came, begun at tick {begun}")
    assert begun > 2 * AGE_TICKS, "it did not wait for the urgent ones"


def test_priority_and_age() -> None:
    """Smaller numbers first at once; each level is made up for by AGE_TICKS of waiting, and the
    largest number waits for a bounded time behind the smallest."""
    assert aged_priority(0, 5) < aged_priority(1, 5)
    assert aged_priority(1, 0) < aged_priority(0, AGE_TICKS + 1)
    assert aged_priority(1, 2) > aged_priority(0, AGE_TICKS)
    bound = 2 * MOST_LEVELS * AGE_TICKS
    assert aged_priority(1 << 40, 0) < aged_priority(-(1 << 40), bound + 1)


def test_a_restored_request_is_scheduled_by_every_strategy() -> None:
    """CASES A98: a request restored into an otherwise empty engine was invisible to the strategy.
    Restored by swap and by computing, in its prompt and while it decodes."""
    for strategy in ("refill", "cohort"):
        for swap_pages in (0, 200):
            for steps in (2, 12):
                run = HostRun(strategy=strategy, swap_pages=swap_pages, chunk_size=3)
                (own,) = requests(1, 3)
                run.add(own)
                for _ in range(steps):
                    run.step()
                run.scheduler.preempt(0)
                run.finish(2000)
                assert run.answers[0] == alone(own, strategy=strategy)
