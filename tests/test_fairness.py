"""Nobody waits for ever: bounded waits for prompts, decode rows and the queue."""

from __future__ import annotations

import numpy as np
import pytest

from rlt_core.schedule.request import EngineRequest
from tests.host_runs import LOOPS, VOCAB, HostRun


def _request(request_id: int, prompt_len: int, max_tokens: int, priority: int = 0) -> EngineRequest:
    rng = np.random.default_rng(request_id)
    return EngineRequest(
        request_id=request_id,
        prompt=rng.integers(0, VOCAB, prompt_len),
        max_tokens=max_tokens,
        loops=LOOPS,
        max_loops=LOOPS,
        seed=request_id,
        priority=priority,
    )


@pytest.mark.parametrize("strategy", ["refill", "cohort"])
@pytest.mark.parametrize("layout", ["last_exited", "shared", "last_step"])
def test_one_long_request_among_endless_short_ones(strategy: str, layout: str) -> None:
    """Guards A63: decode rows or a long prompt never run while short prompts keep coming, or the
    reverse. The most ticks between two advances of any request with a slot is bounded."""
    run = HostRun(strategy=strategy, layout=layout, num_slots=4, num_places=8, chunk_size=4)
    run.add(_request(0, 40, 20))
    arrived = 1
    for _ in range(4000):
        while len(run.scheduler.records) < 8:
            run.add(_request(arrived, 2 + arrived % 5, 1 + arrived % 4))
            arrived += 1
        run.step()
        if run.answers.get(0) is not None and run.answers[0].ended:
            break
    assert run.answers[0].ended, "the long request never came through"
    assert arrived > 20
    print(f"{strategy} {layout}: {run.counts.max_wait_ticks} ticks, queue {run.counts}")
    # A cohort waits for its deepest row; a prompt for the cells of the three others.
    assert run.counts.max_wait_ticks <= 4 * LOOPS


def test_a_long_prompt_does_not_hold_up_the_short_ones() -> None:
    """Guards the reverse of A63: a prompt of many chunks takes all places until it is done."""
    run = HostRun(num_slots=4, num_places=4, chunk_size=4)
    run.add(_request(0, 60, 2), *(_request(i, 4, 2) for i in range(1, 4)))
    firsts: list[int] = []
    while run.engine.has_work:
        events = run.step()
        firsts += [i for i in events.request_id.tolist() if i not in firsts]
    assert firsts[-1] == 0, firsts


def test_the_queue_is_first_come_first_served_within_a_priority() -> None:
    """Guards a large request that is passed by for ever because smaller ones always fit."""
    run = HostRun(num_slots=2, num_pages=60 // 4 * 6 + 1)
    run.add(_request(0, 20, 8), _request(1, 50, 2), *(_request(i, 2, 2) for i in range(2, 12)))
    run.add(_request(12, 2, 2, priority=-1))
    begun: list[int] = []
    while run.engine.has_work:
        run.step()
        live = run.scheduler.records
        begun += [i for i in live if live[i].resident and i not in begun]
    assert sorted(begun[:2]) == [0, 12], begun
    assert begun[2:] == list(range(1, 12)), begun


def test_the_first_in_rank_always_advances(seed: int) -> None:
    """Guards A82: however small the pool, the oldest request is never preempted."""
    rng = np.random.default_rng(seed)
    run = HostRun(num_slots=6, page_size=2, num_pages=20 * 6 + 1)
    run.add(*(_request(i, int(rng.integers(2, 12)), 24) for i in range(14)))
    first, was_resident = -1, False
    while run.engine.has_work:
        run.step()
        live = run.scheduler.records
        if live:
            oldest = live[min(live)]
            if oldest.serial == first and was_resident:
                assert oldest.resident, f"{first} was preempted"
            first, was_resident = oldest.serial, oldest.resident
    print(run.counts)
    assert run.counts.preemptions > 0
    assert run.counts.max_wait_ticks < 400
