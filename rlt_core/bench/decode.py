"""`rlt bench decode`: milliseconds between tokens at a fixed depth.

B requests with prompts of C random tokens generate N tokens each, greedy, every token at the full
depth D, no stop id. All prompts run first; then all requests decode together. Prompt time: from
the first request handed over to the last of the first tokens. The window begins there and ends
with the last token of all: (N - 1) tokens of every request, between which

    milliseconds between tokens = window / (N - 1)
    floor = (prelude + D loops + coda + head + B x (C + N / 2) keys of D planes) / read bandwidth

with bytes as in bench.traffic and the bandwidth as in bench.bandwidth, measured in the same run.
A first run of the same prompts with few tokens warms up and is not counted. The host's share is
the part of the window in which it did not wait for the device. The GPU's idle share compares the
time with a kernel running (torch's profiler, 50 ticks of a run of its own) with the time that as
many ticks take without the profiler.

    rlt bench decode --random-weights FOLDER --context 1024 --batch 1 --batch 32 --device cuda
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rlt_core.bench.crowd import Crowd, Window
from rlt_core.bench.gpu_idle import busy_seconds
from rlt_core.bench.setting import Setting
from rlt_core.bench.spread import Spread
from rlt_core.bench.subject import Lengths, Subject, opened
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.runtime.batch import I64
from rlt_core.schedule.request import EngineRequest

# (context, batch) of DESIGN section 8.
CPU_GRID = ((64, 1), (64, 8))
GRID = (*((1024, batch) for batch in (1, 8, 32, 64, 128)), *((128, b) for b in (1, 32, 128)))
WARM_TOKENS = 4
PROFILED_TICKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What is measured: `batch` requests of `context` prompt tokens and `new_tokens` more."""

    context: int
    batch: int
    new_tokens: int

    @property
    def lengths(self) -> list[Lengths]:
        """Of every resident."""
        return [Lengths(prompt=self.context, total=self.context + self.new_tokens)] * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """One point. token_ms and prompt_s over the repeats; the other values are medians of them.

    moved_bytes: for one more token of every request. gpu_idle: None without --profile.
    """

    point: Point
    token_ms: Spread
    prompt_s: Spread
    tokens_per_s: float
    moved_bytes: float
    bandwidth: float
    host_share: float
    halts: int
    ticks: int
    gpu_idle: float | None = None

    @property
    def floor_ms(self) -> float:
        """The least time for one token of every request."""
        return self.moved_bytes / self.bandwidth * 1e3

    @property
    def ratio(self) -> float:
        """How far from the floor: 1 would be on it."""
        return self.token_ms.median / self.floor_ms

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "context": self.point.context,
            "batch": self.point.batch,
            "new_tokens": self.point.new_tokens,
            "token_ms": self.token_ms.as_dict(),
            "prompt_s": self.prompt_s.as_dict(),
            "tokens_per_s": self.tokens_per_s,
            "moved_bytes": self.moved_bytes,
            "read_bytes_per_s": self.bandwidth,
            "floor_ms": self.floor_ms,
            "ratio": self.ratio,
            "host_share": self.host_share,
            "gpu_idle": self.gpu_idle,
            "ticks": self.ticks,
            "halts": self.halts,
        }


def measure_decode(
    setting: Setting,
    point: Point,
    registry: Registry,
    *,
    bandwidth: float,
    repeat: int = 3,
    seed: int = 0,
    profiled: bool = False,
) -> DecodeResult:
    """Measure one point. Raises CapacityError when its requests do not fit."""
    with opened(setting, point.lengths, registry) as subject:
        prompts = random_prompts(subject.plan, point.context, point.batch, seed)
        _run(subject, prompts, min(WARM_TOKENS, point.new_tokens))
        runs = [_run(subject, prompts, point.new_tokens) for _ in range(repeat)]
        ticks = min(PROFILED_TICKS, runs[0][1].ticks // 2)
        idle = _idle(subject, prompts, point, ticks) if profiled else None
        loops = subject.plan.shape.loops
        moved = subject.traffic.token_bytes(
            loops=loops, rows=point.batch, keys=point.context + point.new_tokens / 2
        )
    token_ms = Spread.of(window.token_ms(point.batch) for _, window in runs)
    return DecodeResult(
        point=point,
        token_ms=token_ms,
        prompt_s=Spread.of(seconds for seconds, _ in runs),
        tokens_per_s=point.batch / token_ms.median * 1e3,
        moved_bytes=moved,
        bandwidth=bandwidth,
        host_share=Spread.of(window.host_share for _, window in runs).median,
        halts=sum(window.halts for _, window in runs),
        ticks=runs[0][1].ticks,
        gpu_idle=idle,
    )


def random_prompts(plan: Plan, context: int, batch: int, seed: int) -> list[I64]:
    """Random token ids, int64 [context] each."""
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, plan.shape.vocab_size, (batch, context)))


def _run(subject: Subject, prompts: Sequence[I64], new_tokens: int) -> tuple[float, Window]:
    """(seconds of the prompts, the window)."""
    with Crowd(subject, _requests(subject.plan, prompts, new_tokens)) as crowd:
        return crowd.prompts(), crowd.advance()


def _idle(subject: Subject, prompts: Sequence[I64], point: Point, ticks: int) -> float:
    """The part of a tick in which no kernel runs: the same ticks once under the profiler and once
    without, since later ones read more KV."""

    @contextmanager
    def decoding() -> Iterator[Crowd]:
        with Crowd(subject, _requests(subject.plan, prompts, point.new_tokens)) as crowd:
            crowd.prompts()
            crowd.advance(ticks // 4)
            yield crowd

    with decoding() as crowd:
        seconds = crowd.advance(ticks).seconds
    with decoding() as crowd:
        busy = busy_seconds(lambda: crowd.advance(ticks))
    return max(0.0, 1 - busy / seconds)


def _requests(plan: Plan, prompts: Sequence[I64], new_tokens: int) -> list[EngineRequest]:
    loops = plan.shape.loops
    return [
        EngineRequest(
            request_id=index,
            prompt=prompt,
            max_tokens=new_tokens,
            loops=loops,
            max_loops=loops,
            use_policy=False,
            num_logprobs=-1,
        )
        for index, prompt in enumerate(prompts)
    ]
