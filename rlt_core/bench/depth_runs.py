"""The runs of `rlt bench depth`: residents that replay given depths under one strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rlt_core.bench.crowd import Crowd, Window
from rlt_core.bench.decode import random_prompts
from rlt_core.bench.depths import Depths
from rlt_core.bench.setting import Setting
from rlt_core.bench.subject import Lengths, Subject, opened
from rlt_core.contract.capabilities import Word
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.runtime.batch import I32
from rlt_core.schedule.request import EngineRequest

WARM_ROUNDS = 4  # times D ticks, before a window


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`width` requests with prompts of `context` tokens, and `new_tokens` more of each, on
    average, in a window."""

    context: int
    width: int
    new_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Depths that every request replays. one_loop: the requests ask for a single loop instead."""

    depths: Depths
    one_loop: bool = False

    def loops(self, plan: Plan) -> int:
        """What a request asks for."""
        return 1 if self.one_loop else plan.shape.loops

    def window_ticks(self, plan: Plan, load: Load) -> int:
        """As many as `new_tokens` tokens of every request take."""
        return max(1, round(load.new_tokens * self.depths.mean(self.loops(plan))))

    def all_ticks(self, plan: Plan, load: Load) -> int:
        """The most ticks that a request may advance in."""
        loops = plan.shape.loops
        return (WARM_ROUNDS + 2) * loops + self.window_ticks(plan, load) + 4

    def traces(self, plan: Plan, load: Load) -> list[I32]:
        """Depths of every request by output; the prompt's own output is at full depth."""
        loops, count = self.loops(plan), self.all_ticks(plan, load) + 2
        found = [self.depths.trace(i, loops, count) for i in range(load.width)]
        for trace in found:
            trace[0] = loops
        return found


class Runs:
    """A subject on which runs are measured one after the other."""

    def __init__(self, subject: Subject, load: Load, in_step: bool) -> None:
        self._subject, self._load, self._in_step = subject, load, in_step
        self._prompts = random_prompts(subject.plan, load.context, load.width, load.seed)

    def measure(self, run: Run) -> Window:
        """One window in a steady state: no prompt runs, nobody arrives or ends."""
        plan, load = self._subject.plan, self._load
        with Crowd(self._subject, self._requests(run)) as crowd:
            crowd.prompts()
            crowd.advance(WARM_ROUNDS * plan.shape.loops, in_step=self._in_step)
            return crowd.advance(run.window_ticks(plan, load), in_step=self._in_step)

    def _requests(self, run: Run) -> list[EngineRequest]:
        plan, loops = self._subject.plan, run.loops(self._subject.plan)
        return [
            EngineRequest(
                request_id=index,
                prompt=prompt,
                max_tokens=self._subject.parts.sizes.engine.max_len,
                loops=loops,
                max_loops=loops,
                trace=trace if plan.policy.id == "trace" else None,
                num_logprobs=-1,
            )
            for index, (prompt, trace) in enumerate(
                zip(self._prompts, run.traces(plan, self._load), strict=True)
            )
        ]


@contextmanager
def opened_runs(
    setting: Setting, plan: Plan, load: Load, runs: Sequence[Run], registry: Registry
) -> Iterator[Runs]:
    """An engine with room for any of the runs; depths below full need the policy `trace`."""
    with opened(setting, resident_lengths(plan, load, runs), registry) as subject:
        yield Runs(subject, load, in_step=setting.strategy == "cohort")


def resident_lengths(plan: Plan, load: Load, runs: Sequence[Run]) -> list[Lengths]:
    """The most positions that each resident reaches in any of the runs."""
    most = np.zeros(load.width, np.int64)
    for run in runs:
        ticks = run.all_ticks(plan, load)
        # The prompt's output, then one whenever the depths so far are ticks that have passed.
        traces = run.traces(plan, load)
        made = [2 + int(np.searchsorted(np.cumsum(t[1:]), ticks, "right")) for t in traces]
        most = np.maximum(most, made)
    return [Lengths(prompt=load.context, total=load.context + int(made)) for made in most]


def has_one_loop(plan: Plan) -> bool:
    """Whether a request of this model may ask for one loop."""
    return Word.LOOPS_OVERRIDE in plan.model.provides
