"""`rlt bench profile`: where the time of a short load goes, seen by torch's profiler.

On a GPU its kernels and copies are counted, on a CPU torch's operators by the time spent in
themselves. Idle is the share of the time in which none of them ran: there the host was at work, or
waited. The profiler itself takes time of the host, so that the share is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from rlt_core.bench.gpu_idle import covered, device_events, profiler

MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Costly:
    """An operator or kernel: calls, and milliseconds of its own in all of them. share: of all that
    was counted."""

    name: str
    calls: int
    ms: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """seconds: of the load under the profiler. idle: 0 to 1."""

    seconds: float
    busy_s: float
    costliest: list[Costly]

    @property
    def idle(self) -> float:
        """The share of the time in which nothing that is counted ran."""
        return max(0.0, 1 - self.busy_s / self.seconds)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "seconds": self.seconds,
            "busy_s": self.busy_s,
            "idle": self.idle,
            "costliest": [asdict(one) for one in self.costliest],
        }


def profiled(run: Callable[[], object], *, on_gpu: bool) -> Profiled:
    """What `run` spends its time on."""
    if on_gpu:
        torch.cuda.synchronize()
    with profiler(ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU) as found:
        start = perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds = perf_counter() - start
    events = device_events(found, "CUDA" if on_gpu else "CPU")
    return Profiled(
        seconds=seconds,
        busy_s=covered(events) / 1e6,
        costliest=costliest(events, on_gpu=on_gpu),
    )


def costliest(events: list[Any], *, on_gpu: bool) -> list[Costly]:
    """The MOST that took longest, all calls of a name together."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        # Times are in microseconds; an operator's own is without those that it calls.
        own = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
        times[event.name].append(own)
    total = sum(map(sum, times.values())) or 1.0
    ranked = sorted(times.items(), key=lambda one: -sum(one[1]))[:MOST]
    return [
        Costly(name=name, calls=len(own), ms=sum(own) / 1e3, share=sum(own) / total)
        for name, own in ranked
    ]
