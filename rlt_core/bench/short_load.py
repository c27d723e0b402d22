"""A short load of an engine in this process, for looking inside: requests join as others decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from rlt_core.bench.decode import random_prompts
from rlt_core.bench.depths import Depths
from rlt_core.bench.setting import Setting
from rlt_core.bench.subject import Lengths, Subject, opened
from rlt_core.contract.errors import RltError
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.schedule.request import EngineRequest, Events


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortLoad:
    """`num_requests` with prompts of `context` tokens and `new_tokens` outputs each; one joins
    every `every` ticks. depths: of the outputs, replayed by the policy `trace`."""

    num_requests: int
    context: int
    new_tokens: int
    depths: Depths
    every: int = 2
    seed: int = 0

    def lengths(self) -> list[Lengths]:
        """Of each request."""
        total = self.context + self.new_tokens
        return [Lengths(prompt=self.context, total=total)] * self.num_requests


@contextmanager
def opened_for(setting: Setting, load: ShortLoad, registry: Registry) -> Iterator[Subject]:
    """An engine with room for the load. CapacityError."""
    setting = replace(setting, exit_policy="trace", prompts_first=False)
    with opened(setting, load.lengths(), registry) as subject:
        yield subject


def run_load(
    subject: Subject, load: ShortLoad, *, step: Callable[[], Events] | None = None
) -> tuple[int, int]:
    """(ticks, tokens) of the whole load. step: in place of the engine's own."""
    engine, waiting = subject.engine, _requests(subject.plan, load)
    run, ticks, tokens = step or engine.step, 0, 0
    while waiting or engine.has_work:
        if waiting and ticks % load.every == 0:
            engine.add(waiting.pop(0))
        events = run()
        if events.errors:
            raise RltError(f"a request failed: {next(iter(events.errors.values()))}")
        ticks += 1
        tokens += int(np.count_nonzero(events.token >= 0))
    return ticks, tokens


def _requests(plan: Plan, load: ShortLoad) -> list[EngineRequest]:
    prompts: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]] = random_prompts(
        plan, load.context, load.num_requests, load.seed
    )
    loops, found = plan.shape.loops, []
    for i, prompt in enumerate(prompts):
        trace = load.depths.trace(i, loops, load.new_tokens)
        trace[0] = loops
        found.append(
            EngineRequest(
                request_id=i,
                prompt=prompt,
                max_tokens=load.new_tokens,
                loops=loops,
                max_loops=loops,
                trace=trace,
            )
        )
    return found
