"""How much of the time a GPU has no kernel to run, seen by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile


def busy_seconds(run: Callable[[], object]) -> float:
    """Seconds in which at least one kernel or copy ran on the GPU while `run` ran."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        run()
        torch.cuda.synchronize()
    spans = (
        (event.time_range.start, event.time_range.end)
        for event in found.events() or ()
        if event.device_type.name == "CUDA"
    )
    return covered(spans) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of stretches of time."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
