"""Small engines in this process, for checks that run whole requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlt_core.contract.protocols import KVLayout, WeightedModel
from rlt_core.kv.accounting import page_rows, plan_kv, request_pages
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import F32
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.executor import Executor
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.request import ERROR, EngineRequest, Events
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.testing.checks.check import CheckFailed, expect

NUM_SLOTS = 3
MAX_LEN = 48
# A tick advances somebody; this is far more than all requests of a check need.
MAX_TICKS = 20_000


@dataclass(slots=True)
class Answer:
    """What one request got; logits are [outputs, V]."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    logits: list[F32] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A way to run requests: a plan, a model, and the sizes that must not matter.

    smallest: a pool that holds one request, so that others wait and are preempted.
    """

    plan: Plan
    model: WeightedModel
    chunk_size: int = MAX_LEN
    smallest: bool = False
    debug: bool = True

    @property
    def max_len(self) -> int:
        """Positions of a request."""
        return min(MAX_LEN, self.plan.shape.max_positions)

    def run(self, requests: list[EngineRequest]) -> dict[int, Answer]:
        """The answers of requests that arrive at once, in a new engine."""
        engine = self._engine()
        answers = {request.request_id: Answer() for request in requests}
        for request in requests:
            engine.add(request)
        for _ in range(MAX_TICKS):
            if not engine.has_work:
                return answers
            _collect(answers, engine.step())
        raise CheckFailed(f"{len(requests)} requests to end in {MAX_TICKS} ticks", "they go on")

    def run_alone(self, requests: list[EngineRequest]) -> dict[int, Answer]:
        """The answers when each request has the engine to itself."""
        return {r.request_id: self.run([r])[r.request_id] for r in requests}

    def _engine(self) -> Engine:
        plan = self.plan
        layout: KVLayout = load_object(plan.layout.factory)()
        kv = plan_kv(
            plan.shape,
            layout,
            page_size=plan.choice.kv_page_size,
            max_depth=plan.max_depth,
            element_bytes=getattr(torch, plan.dtype).itemsize,
        )
        per_slot = request_pages(kv, kv.max_depth, self.max_len, self.max_len)
        per_slot = max(per_slot, len(page_rows(kv, kv.max_depth, "prompt")))
        config = EngineConfig(
            num_slots=NUM_SLOTS,
            num_places=2 * MAX_LEN,
            chunk_size=self.chunk_size,
            page_size=plan.choice.kv_page_size,
            num_pages=1 + per_slot * (1 if self.smallest else NUM_SLOTS),
            max_len=self.max_len,
            max_depth=plan.max_depth,
            debug=self.debug,
            keep_logits=True,
        )
        executor = Executor(plan, config, kv, self.model, layout)
        return Engine(Scheduler(plan, config, kv), executor)


def requests_of(
    plan: Plan, lengths: tuple[int, ...], num_outputs: int, seed: int, **fields: Any
) -> list[EngineRequest]:
    """Greedy requests with random prompts of these lengths; every second one draws its tokens."""
    draw = np.random.default_rng(seed)
    loops = fields.pop("loops", min(plan.shape.loops, plan.max_depth))
    traces = any(param.kind == "depths" for param in plan.policy.params)
    made = []
    for number, length in enumerate(lengths):
        trace = draw.integers(1, loops + 1, num_outputs).astype(np.int32) if traces else None
        made.append(
            EngineRequest(
                request_id=number,
                prompt=draw.integers(0, plan.shape.vocab_size, length),
                max_tokens=num_outputs,
                loops=loops,
                max_loops=loops,
                trace=trace,
                seed=number,
                **{"temperature": 0.8 * (number % 2), **fields},
            )
        )
    return made


def expect_same(
    right: dict[int, Answer], other: dict[int, Answer], expected: str, what: str
) -> None:
    """Fail unless tokens, depths and the bits of the logits are equal."""
    for number, answer in right.items():
        found = other[number]
        told = f"request {number} {what}"
        expect(not (answer.error or found.error), expected, answer.error or found.error)
        same = found.tokens == answer.tokens
        expect(same, expected, f"{told}: tokens {found.tokens}, not {answer.tokens}")
        depths = found.depths == answer.depths
        expect(depths, expected, f"{told}: depths {found.depths}, not {answer.depths}")
        bits = np.array_equal(np.array(found.logits), np.array(answer.logits))
        expect(bits, expected, f"{told}: other bits in its logits")


def _collect(answers: dict[int, Answer], events: Events) -> None:
    for i, number in enumerate(events.request_id.tolist()):
        answer = answers[number]
        if events.finish[i] == ERROR:
            answer.error = events.errors.get(number, "the request failed")
        if events.token[i] >= 0:
            answer.tokens.append(int(events.token[i]))
            answer.depths.append(int(events.depth[i]))
            if events.logits is not None:
                answer.logits.append(events.logits[i])
