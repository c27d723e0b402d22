"""`rlt bench pipeline`: milliseconds and ticks a token where tokens are guessed ahead.

B requests with prompts of C random tokens decode together, greedy, each token at full depth D, no
stop id. All prompts run first. The window begins when every request has its second token, so that
all rows are on their way, and ends when the first has T: nobody arrives or ends in it. Then

    ms between tokens = window x B / tokens       ticks a token = ticks x B / tokens

For strategies that guess, beside `refill`, which is always measured:

    acceptance = guesses that held / guesses that were checked, in the window
    bound      = k + (D - k) (1 - acceptance)     ticks a token, at draft depth k

for a token whose guess held comes k ticks after the one before, and else D ticks; in units of k
ticks that is 1 + (D / k - 1) (1 - acceptance). Wasted loops are those of rows that were dropped.

Acceptance is the model's own, or scripted (bench.script), which random weights need: a first run
under `refill` writes down the right tokens. Of each scripted acceptance one run is not counted.

    rlt bench pipeline --random-weights FOLDER --batch 1 --acceptance 1.0 --acceptance 0.94
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace

import numpy as np

from rlt_core.bench.crowd import Crowd, Window
from rlt_core.bench.decode import random_prompts
from rlt_core.bench.script import Script
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.spread import Spread
from rlt_core.bench.subject import AHEAD, Lengths, Subject, opened
from rlt_core.contract.specs import Entry, StrategySpec
from rlt_core.plugins.registry import Registry
from rlt_core.runtime.batch import I64
from rlt_core.runtime.executor import Executor
from rlt_core.schedule.request import EngineRequest, Events

REFILL = "refill"
WARM_TOKENS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests with prompts of `context` tokens; a window ends with the `new_tokens`-th token of
    one of them."""

    context: int
    new_tokens: int
    seed: int = 0

    def total(self, loops: int) -> int:
        """Positions of a request: it must not end in the window, nor may its flight be cut."""
        return self.context + self.new_tokens + loops


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """One strategy at one batch. token_ms over the repeats, the other values of all repeats.

    draft_depth: 0 where nothing is guessed. asked: the scripted acceptance, None for the model's
    own. acceptance: as measured; None where nothing was checked. wasted: loops a token.
    """

    context: int
    batch: int
    new_tokens: int
    loops: int
    strategy: str
    draft_depth: int
    asked: float | None
    token_ms: Spread
    token_ticks: float
    acceptance: float | None
    wasted: float
    checked: int
    halts: int
    refill_ms: float

    @property
    def bound(self) -> float:
        """Ticks a token at this acceptance."""
        if self.acceptance is None or not self.draft_depth:
            return float(self.loops)
        return self.draft_depth + (self.loops - self.draft_depth) * (1 - self.acceptance)

    @property
    def speedup(self) -> float:
        """Over refill at the same batch."""
        return self.refill_ms / self.token_ms.median

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        fields = asdict(self) | {"token_ms": self.token_ms.as_dict()}
        return fields | {"bound_ticks": self.bound, "speedup": self.speedup}


class PipelineBench:
    """One load, under refill first. told: called after the repeats of each point."""

    def __init__(
        self,
        setting: Setting,
        load: Load,
        registry: Registry,
        *,
        repeat: int = 3,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._setting, self.load, self._registry = setting, load, registry
        self._repeat, self._told = repeat, told
        self._refill_ms: dict[int, float] = {}
        self._lines: list[I64] = []

    def measure(
        self, strategy: str, acceptances: Sequence[float], batches: Sequence[int]
    ) -> list[PipelineResult]:
        """These batches at each acceptance, or at the model's own where none is named. `refill`
        comes before the others, which are compared with it, and guesses nothing. Raises
        CapacityError when the largest batch does not fit."""
        plan = check_setting(setting_of(self._setting, strategy, self._registry), self._registry)
        scripted = tuple(acceptances) if plan.draft_depth else ()
        if not scripted:
            with self._opened(strategy, max(batches)) as subject:
                if strategy == REFILL:
                    self._lines = _right_lines(subject, self.load, max(batches))
                return [self._measure(subject, batch, None) for batch in batches]
        script, found = Script(max(batches), len(self._lines[0]) + AHEAD), []
        with self._opened(strategy, max(batches), script.install) as subject:
            for asked in scripted:
                script.write(self._lines, asked, plan.shape.vocab_size, self.load.seed)
                found += [self._measure(subject, batch, asked) for batch in batches]
        return found

    def _opened(
        self, strategy: str, most: int, before_capture: Callable[[Executor], None] | None = None
    ) -> AbstractContextManager[Subject]:
        setting, load = setting_of(self._setting, strategy, self._registry), self.load
        total = load.total(check_setting(setting, self._registry).shape.loops)
        lengths = [Lengths(prompt=load.context, total=total)] * most
        return opened(setting, lengths, self._registry, before_capture)

    def _measure(self, subject: Subject, batch: int, asked: float | None) -> PipelineResult:
        load, plan = self.load, subject.plan
        # Whether to guess follows what held of late, which was at another acceptance.
        _window(subject, load, batch, WARM_TOKENS + 1 if asked is None else load.new_tokens)
        windows = [_window(subject, load, batch, load.new_tokens) for _ in range(self._repeat)]
        self._told()
        token_ms = Spread.of(w.token_ms(batch) for w in windows)
        if plan.strategy.id == REFILL:
            self._refill_ms[batch] = token_ms.median
        tokens, checked = sum(w.tokens for w in windows), sum(w.checked for w in windows)
        return PipelineResult(
            context=load.context,
            batch=batch,
            new_tokens=load.new_tokens,
            loops=plan.shape.loops,
            strategy=plan.strategy.id,
            draft_depth=plan.draft_depth,
            asked=asked,
            token_ms=token_ms,
            token_ticks=sum(w.ticks for w in windows) * batch / tokens,
            acceptance=sum(w.held for w in windows) / checked if checked else None,
            wasted=sum(w.wasted for w in windows) / tokens,
            checked=checked,
            halts=sum(w.halts for w in windows),
            refill_ms=self._refill_ms[batch],
        )


def setting_of(setting: Setting, strategy: str, registry: Registry) -> Setting:
    """The setting under another strategy; its draft depth is for those that guess. Raises
    UnknownNameError."""
    guesses = registry.get(StrategySpec, strategy).entry is Entry.ON_GUESS
    return replace(setting, strategy=strategy, draft_depth=setting.draft_depth if guesses else None)


def _right_lines(subject: Subject, load: Load, num: int) -> list[I64]:
    """The tokens of so many requests by position: the prompt, and what it gives."""
    requests = _requests(subject, load, num)
    made: list[list[int]] = [[] for _ in requests]

    def told(events: Events) -> None:
        for request, token in zip(events.request_id.tolist(), events.token.tolist(), strict=True):
            if token >= 0:
                made[request].append(token)

    with Crowd(subject, requests, told) as crowd:
        crowd.prompts()
        crowd.advance()
    return [np.concatenate((r.prompt, np.array(m))) for r, m in zip(requests, made, strict=True)]


def _window(subject: Subject, load: Load, batch: int, new_tokens: int) -> Window:
    with Crowd(subject, _requests(subject, load, batch)) as crowd:
        crowd.prompts()
        crowd.until(WARM_TOKENS, all_of_them=True)
        return crowd.until(new_tokens)


def _requests(subject: Subject, load: Load, batch: int) -> list[EngineRequest]:
    loops = subject.plan.shape.loops
    # One by one, so that a request is the same at every batch.
    prompts = [
        random_prompts(subject.plan, load.context, 1, load.seed + index)[0]
        for index in range(batch)
    ]
    return [
        EngineRequest(
            request_id=index,
            prompt=prompt,
            max_tokens=load.new_tokens + loops,
            loops=loops,
            max_loops=loops,
            use_policy=False,
            num_logprobs=-1,
            seed=index,  # where bench.script looks
        )
        for index, prompt in enumerate(prompts)
    ]
