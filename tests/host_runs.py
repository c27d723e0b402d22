"""Whole runs of the scheduler over the fake device: a random workload, its outputs, what it met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlt_core.bench.synthetic import synthetic_kv, synthetic_plan
from rlt_core.contract.specs import ParamSpec, TrackSpec
from rlt_core.plugins.plan import ExitMode
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.request import ABORT, EngineRequest, Events, TickCounts
from rlt_core.schedule.scheduler import Scheduler
from tests.fake_executor import FakeExecutor

VOCAB, LOOPS = 97, 4
# A per-depth track and a boundary one of two parts, so that a table has rows of every kind.
TRACKS = (
    TrackSpec(name="core", num_layers=2, num_kv_heads=1, head_dim=2, per_depth=True),
    TrackSpec(name="coda", num_layers=4, num_kv_heads=1, head_dim=2, per_depth=False),
)
SIZES: dict[str, Any] = {
    "num_slots": 4,
    "num_places": 16,
    "chunk_size": 8,
    "page_size": 4,
    "num_pages": 400,
    "max_len": 64,
    "max_depth": LOOPS,
    "ticks_in_flight": 2,
    "debug": True,
}
Output = tuple[int, int, int]
Score = tuple[int, float, int]


@dataclass(slots=True)
class Answer:
    """What one request got: (token, depth, finish) and (position, logprob, depth) in order."""

    outputs: list[Output] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether its last output carries a finish."""
        return bool(self.outputs) and self.outputs[-1][2] != 0


class HostRun:
    """An engine over the fake device, and everything that it answered."""

    def __init__(
        self,
        *,
        layout: str = "last_exited",
        strategy: str = "refill",
        prompts: str = "chunked",
        exit_mode: ExitMode = "skip",
        params: tuple[ParamSpec, ...] = (),
        **sizes: Any,
    ) -> None:
        plan = synthetic_plan(
            layout=layout,
            strategy=strategy,
            prompts=prompts,
            exit_mode=exit_mode,
            loops=LOOPS,
            vocab_size=VOCAB,
            params=params,
            tracks=TRACKS,
        )
        self.config = EngineConfig(**{**SIZES, **sizes})
        self.kv = synthetic_kv(plan, page_size=self.config.page_size)
        self.device = FakeExecutor(
            self.config, self.kv, entry=plan.strategy.entry, full=exit_mode == "full"
        )
        self.scheduler = Scheduler(plan, self.config, self.kv)
        self.engine = Engine(self.scheduler, self.device)
        self.answers: dict[int, Answer] = {}
        self.aborted: dict[int, Answer] = {}

    @property
    def counts(self) -> TickCounts:
        """What the run contained."""
        return self.engine.counts

    @property
    def num_pages_used(self) -> int:
        """Pages that some request holds; AssertionError when the page tables are damaged."""
        pages = self.scheduler.pages
        pages.check()
        return pages.num_usable - pages.num_free

    def add(self, *requests: EngineRequest) -> None:
        """Queue requests."""
        for request in requests:
            self.engine.add(request)

    def abort(self, request_id: int) -> None:
        """Abort a request; AssertionError if anything but its ABORT comes out afterwards."""
        if request_id in self.answers and self.answers[request_id].ended:
            return
        self.aborted[request_id] = self.answers.pop(request_id, Answer())
        self.engine.abort(request_id)

    def step(self) -> Events:
        """One step; its events are sorted to the requests."""
        events = self.engine.step()
        for name in ("logprob", "rank", "token", "depth", "finish"):
            assert len(getattr(events, name)) == len(events.request_id), name
        self._take_scores(events)
        columns = (events.request_id, events.token, events.depth, events.finish)
        for request_id, *output in zip(*(c.tolist() for c in columns), strict=True):
            if request_id in self.aborted:
                assert output == [-1, 0, ABORT], f"{output} after the abort of {request_id}"
                continue
            answer = self.answers.setdefault(request_id, Answer())
            assert not answer.ended, f"{output} after the end of {request_id}"
            answer.outputs.append((output[0], output[1], output[2]))
        return events

    def finish(self, most: int = 20_000) -> dict[int, Answer]:
        """Step until nothing is left; AssertionError when pages are not given back."""
        for _ in range(most):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, f"not done after {most} steps"
        assert self.num_pages_used == 0, "pages were not given back"
        return self.answers

    def _take_scores(self, events: Events) -> None:
        columns = (
            events.score_request_id,
            events.score_position,
            events.score_logprob,
            events.score_depth,
        )
        for request_id, *score in zip(*(c.tolist() for c in columns), strict=True):
            assert request_id not in self.aborted, f"a score after the abort of {request_id}"
            answer = self.answers.setdefault(request_id, Answer())
            answer.scores.append((score[0], round(score[1], 4), score[2]))


def alone(request: EngineRequest, **choice: Any) -> Answer:
    """What the request gets by itself: one slot, one tick in flight, one chunk, a large pool."""
    run = HostRun(
        num_slots=1, num_places=64, chunk_size=64, page_size=16, ticks_in_flight=1, **choice
    )
    run.add(request)
    return run.finish()[request.request_id]


def random_requests(
    rng: np.random.Generator, num: int, *, max_prompt: int = 18, max_tokens: int = 18
) -> list[EngineRequest]:
    """Requests of every kind; together they can never outgrow 40 positions each."""
    return [_random_request(rng, i, max_prompt, max_tokens) for i in range(num)]


def with_ids(requests: Sequence[EngineRequest]) -> dict[int, EngineRequest]:
    """The requests by id."""
    return {request.request_id: request for request in requests}


def _random_request(
    rng: np.random.Generator, request_id: int, max_prompt: int, max_tokens: int
) -> EngineRequest:
    length = int(rng.integers(1, max_prompt + 1))
    loops = int(rng.integers(1, LOOPS + 1))
    low = int(rng.integers(1, loops + 1))
    return EngineRequest(
        request_id=request_id,
        prompt=rng.integers(0, VOCAB, length),
        kind="score" if rng.random() < 0.2 else "generate",
        prompt_len=int(rng.integers(0, length + 1)),
        max_tokens=int(rng.integers(1, max_tokens + 1)),
        loops=loops,
        min_loops=low,
        max_loops=int(rng.integers(low, loops + 1)),
        use_policy=bool(rng.random() < 0.9),
        seed=int(rng.integers(1 << 40)),
        stop_ids=(3, 5),
        prompt_logprobs=0 if rng.random() < 0.2 else None,
        priority=int(rng.integers(0, 2)),
    )
