"""The scheduler over a fake device: whatever the schedule, each request gets what it gets alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlt_core.contract.errors import RequestError
from rlt_core.contract.specs import ParamSpec
from rlt_core.schedule.request import ABORT, LENGTH, EngineRequest
from tests.host_runs import VOCAB, Answer, HostRun, alone, random_requests
from tests.selection import mostly_slow

CHOICES: list[dict[str, Any]] = [
    {"layout": "last_exited", "strategy": "refill"},
    {"layout": "last_exited", "strategy": "cohort"},
    {"layout": "last_exited", "strategy": "refill", "exit_mode": "full"},
    {"layout": "shared", "strategy": "refill"},
    {"layout": "last_step", "strategy": "refill"},
    {"layout": "last_step", "strategy": "cohort"},
    {"layout": "last_exited", "strategy": "refill", "prompts": "wavefront"},
    {"layout": "last_exited", "strategy": "cohort", "prompts": "wavefront", "exit_mode": "full"},
    {"layout": "last_step", "strategy": "refill", "prompts": "wavefront"},
]
IDS = ["-".join(choice.values()) for choice in CHOICES]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@pytest.mark.parametrize("ticks_in_flight", [1, 2])
def test_random_workloads_give_what_each_request_gets_alone(
    choice: dict[str, Any], ticks_in_flight: int, seed: int
) -> None:
    """Guards "the same tokens, whatever the schedule" (A14, A82, A97): arrivals at any time,
    chunks of any size, pools so small that requests are preempted, aborts in every state."""
    rng = np.random.default_rng(seed)
    requests = random_requests(rng, 10)
    aborted = {i for i in range(len(requests)) if rng.random() < 0.2}
    sizes = _tight_sizes(rng, choice["layout"], ticks_in_flight)
    run = HostRun(**choice, **sizes)
    waiting = list(requests)
    while waiting or run.engine.has_work:
        while waiting and rng.random() < 0.4:
            run.add(waiting.pop(0))
        for request_id in sorted(aborted):
            if request_id < len(requests) - len(waiting) and rng.random() < 0.05:
                run.abort(request_id)
        run.step()
    run.finish()
    print(sizes, run.counts)
    _compare(run, requests, choice)


@pytest.mark.parametrize(
    "choice",
    mostly_slow(CHOICES, CHOICES[0], CHOICES[5]),
    ids=IDS,
)
def test_a_preemption_at_any_moment_changes_nothing(choice: dict[str, Any], seed: int) -> None:
    """Guards A97 and A82 in every state: in a chunk, with outputs in flight, with scores in
    flight, twice in a row; and a resume before the last outputs are in."""
    rng = np.random.default_rng(seed)
    requests = random_requests(rng, 8)
    run = HostRun(**choice, num_slots=3, chunk_size=4, num_places=12)
    run.add(*requests)
    for _ in range(600):
        if not run.engine.has_work:
            break
        live = list(run.scheduler.records)
        if live and rng.random() < 0.3:
            run.scheduler.preempt(live[int(rng.integers(len(live)))])
        run.step()
    run.finish()
    print(run.counts)
    assert run.counts.preemptions > 10
    _compare(run, requests, choice)


def _tight_sizes(rng: np.random.Generator, layout: str, ticks_in_flight: int) -> dict[str, Any]:
    """A pool that just holds the longest request of the workload, 36 positions."""
    page_size = int(rng.choice([2, 4, 8]))
    rows = 3 if layout == "shared" else 6
    return {
        "ticks_in_flight": ticks_in_flight,
        "num_slots": int(rng.integers(2, 7)),
        "chunk_size": int(rng.choice([1, 3, 7, 64])),
        "num_places": int(rng.choice([7, 24])),
        "page_size": page_size,
        "num_pages": -(-36 // page_size) * rows + 1 + int(rng.integers(0, 12)),
    }


def _compare(run: HostRun, requests: list[EngineRequest], choice: dict[str, Any]) -> None:
    choice = {name: value for name, value in choice.items() if name not in ("strategy", "prompts")}
    for request in requests:
        want = alone(request, **choice)
        got = run.answers.get(request.request_id)
        if got is not None:
            assert got == want, request
            continue
        # What came before the abort is a beginning of it.
        before = run.aborted[request.request_id]
        assert before.outputs == want.outputs[: len(before.outputs)], request
        assert before.scores == want.scores[: len(before.scores)], request


def _generate(request_id: int, prompt_len: int, max_tokens: int, **more: Any) -> EngineRequest:
    rng = np.random.default_rng(request_id)
    fields: dict[str, Any] = {
        "loops": 4,
        "max_loops": 4,
        "seed": request_id,
        "prompt": rng.integers(0, VOCAB, prompt_len),
        "max_tokens": max_tokens,
        **more,
    }
    return EngineRequest(request_id=request_id, **fields)


DEPTHS = ParamSpec(name="trace", kind="depths", summary="")


@pytest.mark.parametrize("layout", ["last_exited", "shared", "last_step"])
def test_scripted_depths_stay_with_their_request(layout: str) -> None:
    """Guards A14: a row that leaves at loop 1 keeps a slot, or A's depth is reported for B. Runs
    together, one by one and with arrivals between loops; the pages are back at zero."""
    script = [(4, 1, 3, 2, 1), (1, 1, 4), (2, 2, 2, 2), (3,) * 5, (4, 4, 1, 1)]
    requests = [
        _generate(i, 5 + i, 12, trace=np.resize(np.array(d, np.int32), 12), stop_ids=())
        for i, d in enumerate(script)
    ]
    together = HostRun(layout=layout, params=(DEPTHS,), num_slots=5)
    together.add(*requests)
    together.finish()
    between = HostRun(layout=layout, params=(DEPTHS,), num_slots=5)
    for request in requests:
        between.add(request)
        between.step()
    between.finish()
    for request in requests:
        want = alone(request, layout=layout, params=(DEPTHS,))
        assert together.answers[request.request_id] == want
        assert between.answers[request.request_id] == want
        trace = request.trace
        assert trace is not None
        # The first output comes from the prompt, at full depth.
        assert [depth for _, depth, _ in want.outputs] == [4, *trace[1:].tolist()]


def test_a_resumed_request_has_its_own_token() -> None:
    """Guards A97: with two ticks in flight a preempted request resumed with the last token of
    its new slot's former owner. Four requests, two slots, a pool for one and a half."""
    requests = [_generate(i, 9, 20, stop_ids=()) for i in range(4)]
    run = HostRun(num_slots=2, page_size=2, num_pages=15 * 6 + 20)
    run.add(*requests)
    run.finish()
    print(run.counts)
    assert run.counts.preemptions > 0
    assert run.counts.slots_reused > 0
    for request in requests:
        assert run.answers[request.request_id] == alone(request)


def test_two_large_requests_do_not_play_ping_pong() -> None:
    """Guards A82: two requests of 60 % of the pool preempt each other for ever. The older one
    goes through; the younger gives way once and is not started again before it fits."""
    requests = [_generate(i, 8, 32, stop_ids=()) for i in range(2)]
    pages = 64 // 4 * 6 + 1
    run = HostRun(num_slots=2, num_pages=pages)
    run.add(*requests)
    ends = []
    while run.engine.has_work:
        events = run.step()
        ends += events.request_id[events.finish != 0].tolist()
    print(run.counts)
    assert ends == [0, 1]
    assert 1 <= run.counts.preemptions <= 2
    for request in requests:
        assert run.answers[request.request_id] == alone(request)


def test_a_request_that_fits_later_waits_and_one_that_never_fits_is_refused() -> None:
    """Guards A74: a stage that accepts what its pool can never hold, and dies later. A pool of
    40 positions: 41 prompt tokens are refused with both numbers, 30 + 20 end with `length` at the
    pool's limit (40 and the last output, which needs no page), of 2 x 30 the second waits."""
    run = HostRun(num_pages=40 // 4 * 6 + 1, max_len=1024)
    with pytest.raises(RequestError, match=r"41 prompt tokens .* holds 40"):
        run.add(_generate(0, 41, 5))
    run.add(_generate(1, 30, 20, stop_ids=()))
    answer = run.finish()[1]
    assert len(answer.outputs) == 11
    assert answer.outputs[-1][2] == LENGTH
    run.add(_generate(2, 30, 3, stop_ids=()), _generate(3, 30, 3, stop_ids=()))
    while 2 not in run.answers or not run.answers[2].ended:
        assert 3 not in run.answers
        run.step()
    assert run.finish()[3] == alone(_generate(3, 30, 3, stop_ids=()))
    assert run.counts.preemptions == 0


def test_admission_leaves_every_resident_a_page() -> None:
    """Guards admission that at once leads to a preemption: requests that grow by one page each
    never lose their slot to a newcomer's pages."""
    run = HostRun(num_slots=6, num_pages=10 * 6 + 1)
    run.add(*(_generate(i, 3, 5, stop_ids=()) for i in range(24)))
    run.finish()
    print(run.counts)
    assert run.counts.preemptions == 0


STAGES = ("waiting", "prompt", "decode", "preempted")


@pytest.mark.parametrize("strategy", ["refill", "cohort"])
@pytest.mark.parametrize("stage", STAGES)
def test_abort_in_every_state_frees_everything(strategy: str, stage: str) -> None:
    """Guards outputs after an abort, pages lost by it, and A98: an engine that then finds nothing
    to run although a request waits."""
    run = HostRun(strategy=strategy, num_slots=2, page_size=2, chunk_size=2, num_pages=15 * 6 + 20)
    requests = [_generate(i, 9, 20, stop_ids=()) for i in range(4)]
    run.add(*requests)
    target = _reach(run, stage)
    counted = getattr(run.counts, f"aborts_{stage}")
    run.abort(target)
    assert getattr(run.counts, f"aborts_{stage}") == counted + 1
    answers = run.finish()
    for request in requests:
        if request.request_id != target:
            assert answers[request.request_id] == alone(request)


def _reach(run: HostRun, stage: str) -> int:
    """Step until some request is in the wanted state; its id."""
    records = run.scheduler.records
    for _ in range(500):
        found = [i for i, record in records.items() if record.state.name.lower() == stage]
        if found:
            return found[-1]
        run.step()
    raise AssertionError(f"no request was ever {stage}")


@pytest.mark.parametrize("strategy", ["refill", "cohort"])
@pytest.mark.parametrize("layout", ["last_exited", "shared", "last_step"])
def test_a_preempted_request_alone_in_the_engine_goes_on(strategy: str, layout: str) -> None:
    """Guards A98: a restored request that no policy picks ("made no progress")."""
    run = HostRun(strategy=strategy, layout=layout, num_slots=2, page_size=2, num_pages=111)
    if layout != "last_exited":
        run = HostRun(strategy=strategy, layout=layout, num_slots=2, page_size=2, num_pages=62)
    requests = [_generate(i, 9, 20, stop_ids=()) for i in range(2)]
    run.add(*requests)
    victim = _reach(run, "preempted")
    run.abort(1 - victim)
    assert run.finish()[victim] == alone(requests[victim], layout=layout)


def test_an_aborted_id_may_be_used_again_at_once() -> None:
    """Guards outputs in flight that reach the next request of the same id."""
    run = HostRun()
    run.add(_generate(7, 6, 30, stop_ids=()))
    for _ in range(12):
        run.step()
    run.engine.abort(7)
    again = EngineRequest(request_id=7, prompt=np.array([1, 2, 3]), max_tokens=4, seed=5)
    run.engine.add(again)
    run.answers.clear()
    outputs = []
    while run.engine.has_work:
        events = run.engine.step()
        outputs += list(zip(events.token.tolist(), events.finish.tolist(), strict=True))
    assert outputs[0] == (-1, ABORT)
    want = alone(again)
    assert outputs[1:] == [(token, finish) for token, _, finish in want.outputs]


def test_steps_without_work_say_nothing() -> None:
    """Guards an idle engine that spins or raises, and an abort that nobody is told."""
    run = HostRun()
    assert not run.engine.has_work
    assert len(run.engine.step().request_id) == 0
    run.add(_generate(0, 4, 4))
    run.engine.abort(0)
    assert run.engine.has_work
    assert run.engine.step().finish.tolist() == [ABORT]
    assert not run.engine.has_work
    run.engine.abort(0)
    run.engine.abort(99)
    assert not run.engine.has_work


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("prompt", {"prompt": np.zeros(0, np.int64)}),
        ("prompt", {"prompt": np.array([1, VOCAB])}),
        ("prompt", {"prompt": np.array([1, -1])}),
        ("prompt", {"prompt": np.ones(64, np.int64)}),
        ("max_tokens", {"max_tokens": 0}),
        ("loops", {"loops": 5, "max_loops": 5}),
        ("loops", {"loops": 0}),
        ("min_loops", {"min_loops": 5}),
        ("max_loops", {"min_loops": 3, "max_loops": 2}),
        ("max_loops", {"max_loops": 5}),
        ("kind", {"kind": "embed"}),
        ("prompt_len", {"kind": "score", "prompt_len": 9}),
        ("stop_ids", {"stop_ids": tuple(range(17))}),
        ("logit_bias", {"logit_bias": dict.fromkeys(range(513), 1.0)}),
        ("num_logprobs", {"num_logprobs": 21}),
        ("seed", {"seed": 1 << 63}),
        ("exit_threshold", {"exit_params": {}}),
        ("exit_threshold", {"exit_params": {"exit_threshold": float("nan")}}),
        ("request_id", {}),
    ],
)
def test_what_can_never_run_is_refused_alone(field: str, change: dict[str, Any]) -> None:
    """Guards A87: one bad request stops the engine, or is accepted and hangs."""
    threshold = ParamSpec(name="exit_threshold", kind="float", summary="")
    run = HostRun(params=(threshold,))
    good = _generate(0, 5, 4, exit_params={"exit_threshold": 0.5})
    run.add(good)
    request_id = 0 if field == "request_id" else 1
    fields: dict[str, Any] = {"exit_params": {"exit_threshold": 0.5}, **change}
    bad = dataclasses.replace(_generate(request_id, 5, 4), **fields)
    with pytest.raises(RequestError) as caught:
        run.add(bad)
    assert caught.value.field == field
    assert run.finish().keys() == {0}


def test_scores_come_once_although_their_request_is_preempted(seed: int) -> None:
    """Guards A82's lost or doubled prompt logprobs: every position once, in order, the same as
    with a large pool."""
    rng = np.random.default_rng(seed)
    requests = [
        _generate(i, 16, 12, stop_ids=(), prompt_logprobs=0, prompt=rng.integers(0, VOCAB, 16))
        for i in range(5)
    ]
    requests += [
        EngineRequest(
            request_id=9,
            prompt=rng.integers(0, VOCAB, 30),
            kind="score",
            prompt_len=4,
            loops=4,
            max_loops=4,
        )
    ]
    run = HostRun(num_slots=4, page_size=2, chunk_size=3, num_pages=15 * 6 + 30)
    run.add(*requests)
    run.finish()
    print(run.counts)
    assert run.counts.preemptions > 0
    for request in requests:
        answer: Answer = run.answers[request.request_id]
        assert [score[0] for score in answer.scores] == list(range(len(request.prompt) - 1))
        assert answer == alone(request)
