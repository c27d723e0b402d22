"""How much of the time a GPU has no kernel to run, seen by torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rlt_core.contract.errors import RltError


def profiler(activity: ProfilerActivity) -> profile:
    """torch's, of one kind of activity, which prints nothing of its own."""
    # Read when the first one begins. From torch 2.13 on lines about its beginning and end have a
    # level above that of errors, so that those are hidden too: `device_events` says what they mean.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return profile(activities=[activity], acc_events=True)


def device_events(found: profile, kind: str) -> list[Any]:
    """What ran on the devices of a kind, "CUDA" or "CPU"; RltError where nothing was seen."""
    events = [event for event in found.events() or () if event.device_type.name == kind]
    if not events:
        raise RltError(
            f"torch's profiler saw nothing on {kind}; with KINETO_LOG_LEVEL=0 it says why"
        )
    return events


def busy_seconds(run: Callable[[], object]) -> float:
    """Seconds in which at least one kernel or copy ran on the GPU while `run` ran."""
    torch.cuda.synchronize()
    with profiler(ProfilerActivity.CUDA) as found:
        run()
        torch.cuda.synchronize()
    return covered(device_events(found, "CUDA")) / 1e6


def covered(events: Iterable[Any]) -> float:
    """Microseconds in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((e.time_range.start, e.time_range.end) for e in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
