"""`rlt bench prefill`: seconds until every one of some prompts has its first token.

N prompts of L random tokens are handed over at once to an idle engine, each asks for one token,
greedy, at full depth. Timed is the whole call, from the first prompt handed over to the last first
token: scheduling, copies and heads are in it. No prompt is drawn twice, and there is no prefix
cache. A first run of the same size warms up and is not counted.

    products    = 2 x weights of the parts' products: prelude, D loops and coda for every position,
                  head for every prompt
    attention   = 4 x heads x head size for every pair of a position and one that it sees
    the ceiling = products / the rate of a large square product of the library, measured in the
                  same run

Only the products count against the ceiling: attention, norms and the writing of KV come on top.

    rlt bench prefill --random-weights FOLDER --prompts 32 --prompt-len 1024 --device cuda
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from rlt_core.bench.crowd import Crowd
from rlt_core.bench.decode import random_prompts
from rlt_core.bench.operator_calls import Call, record_calls
from rlt_core.bench.setting import Setting
from rlt_core.bench.spread import Spread
from rlt_core.bench.subject import Lengths, Subject, opened
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.runtime.batch import I64
from rlt_core.schedule.request import EngineRequest, Events

# (prompts, tokens of each)
CUDA_GRID, CPU_GRID = ((32, 1024), (1, 1024), (8, 4096)), ((4, 64), (1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What is measured: `count` prompts of `length` tokens."""

    count: int
    length: int

    @property
    def lengths(self) -> list[Lengths]:
        """Of every resident."""
        return [Lengths(prompt=self.length, total=self.length + 1)] * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Operations (a multiply and an add are two) of all prompts together."""

    products: float
    attention: float

    @classmethod
    def of(cls, plan: Plan, prompts: Prompts) -> Work:
        """As the plan's model computes them."""
        calls, loops = record_calls(plan), plan.shape.loops
        times = {"prelude": 1, "loop": loops, "coda": 1}
        positions = prompts.count * prompts.length
        every = sum(num * _products(calls[part].items()) for part, num in times.items())
        pairs = prompts.count * prompts.length * (prompts.length + 1) // 2
        attends = sum(num * _attends(calls[part].items()) for part, num in times.items())
        head = prompts.count * _products(calls["head"].items())
        return cls(products=positions * every + head, attention=pairs * attends)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """One point. seconds over the repeats; rate: the ceiling, operations a second.

    num_rows: prompt rows in progress. chunk_size: rows of a chunk, at most. ticks: of the first
    repeat.
    """

    prompts: Prompts
    num_rows: int
    chunk_size: int
    seconds: Spread
    work: Work
    rate: float
    ticks: int
    halts: int

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens a second."""
        return self.prompts.count * self.prompts.length / self.seconds.median

    @property
    def reached(self) -> float:
        """Operations a second of the products, over the whole time."""
        return self.work.products / self.seconds.median

    @property
    def share(self) -> float:
        """Of the ceiling."""
        return self.reached / self.rate

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "prompts": self.prompts.count,
            "prompt_len": self.prompts.length,
            "num_rows": self.num_rows,
            "chunk_size": self.chunk_size,
            "seconds": self.seconds.as_dict(),
            "tokens_per_s": self.tokens_per_s,
            "product_operations": self.work.products,
            "attention_operations": self.work.attention,
            "operations_per_s": self.reached,
            "ceiling_operations_per_s": self.rate,
            "share_of_ceiling": self.share,
            "ticks": self.ticks,
            "halts": self.halts,
        }


def measure_prefill(
    setting: Setting,
    prompts: Prompts,
    registry: Registry,
    *,
    rate: float,
    repeat: int = 3,
    seed: int = 0,
) -> PrefillResult:
    """Measure one point. Raises CapacityError when the prompts do not fit."""
    with opened(setting, prompts.lengths, registry) as subject:
        plan = subject.plan
        drawn = random_prompts(plan, prompts.length, prompts.count * (repeat + 1), seed)
        runs = [
            _run(subject, drawn[start : start + prompts.count])
            for start in range(0, len(drawn), prompts.count)
        ][1:]
        num_rows = subject.parts.sizes.engine.num_places
    return PrefillResult(
        prompts=prompts,
        num_rows=num_rows,
        chunk_size=setting.chunk_size or num_rows,
        seconds=Spread.of(run.seconds for run in runs),
        work=Work.of(plan, prompts),
        rate=rate,
        ticks=runs[0].ticks,
        halts=sum(run.halts for run in runs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    seconds: float
    ticks: int
    halts: int


def _run(subject: Subject, prompts: Sequence[I64]) -> _Run:
    ticks = 0

    def count(events: Events) -> None:
        nonlocal ticks
        ticks += 1

    counts = subject.engine.counts
    before = counts.parked_rows + counts.preemptions
    with Crowd(subject, _requests(subject.plan, prompts), count) as crowd:
        seconds = crowd.prompts()
    counts = subject.engine.counts
    return _Run(
        seconds=seconds, ticks=ticks, halts=counts.parked_rows + counts.preemptions - before
    )


def _requests(plan: Plan, prompts: Sequence[I64]) -> list[EngineRequest]:
    loops = plan.shape.loops
    return [
        EngineRequest(
            request_id=index,
            prompt=prompt,
            max_tokens=1,
            loops=loops,
            max_loops=loops,
            use_policy=False,
            num_logprobs=-1,
        )
        for index, prompt in enumerate(prompts)
    ]


def _products(calls: Iterable[tuple[Call, int]]) -> int:
    """Operations of a part's products for one row."""
    return sum(2 * num * prod(call.weights[0]) for call, num in calls if "linear" in call.op)


def _attends(calls: Iterable[tuple[Call, int]]) -> int:
    """Operations of a part's attention for one pair of positions: scores and weighted values."""
    return sum(4 * num * prod(call.rows[0]) for call, num in calls if call.op == "attend")
