"""How much of the time a GPU has no kernel to run, seen by torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile


def profiler(activity: ProfilerActivity) -> profile:
    """torch's, of one kind of activity, which counts events but prints nothing of its own."""
    # Read when the first one begins; from torch 2.13 on it says so on stderr otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return profile(activities=[activity], acc_events=True)


def busy_seconds(run: Callable[[], object]) -> float:
    """Seconds in which at least one kernel or copy ran on the GPU while `run` ran."""
    torch.cuda.synchronize()
    with profiler(ProfilerActivity.CUDA) as found:
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
