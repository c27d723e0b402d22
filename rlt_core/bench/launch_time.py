"""Seconds of one launch, and how fast the device multiplies: the other ceiling of a kernel.

On a GPU many launches are captured into one graph, so that the host's work does not count, and the
fastest replay does. The caller changes its operands from launch to launch, so that weights are read
from memory and not from a cache, as a model's layers do.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

CUDA_REPLAYS, CPU_REPEATS = 6, 3
CUDA_SIDE, CPU_SIDE = 8192, 1024


def launch_seconds(launch: Callable[[int], object], device: torch.device, launches: int) -> float:
    """Seconds of one `launch(i)`, i from 0 to launches - 1."""
    if device.type == "cuda":
        return _graph_seconds(launch, launches)
    launch(0)
    best = float("inf")
    for _ in range(CPU_REPEATS):
        start = perf_counter()
        for index in range(launches):
            launch(index)
        best = min(best, perf_counter() - start)
    return best / launches


def product_rate(device: torch.device, dtype: torch.dtype, side: int | None = None) -> float:
    """Operations a second of a large square product of the library, measured now."""
    size = side or (CUDA_SIDE if device.type == "cuda" else CPU_SIDE)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = launch_seconds(lambda _: torch.mm(left, right, out=out), device, 4)
    return 2 * size**3 / seconds


def _graph_seconds(launch: Callable[[int], object], launches: int) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for index in range(min(launches, 3)):
            launch(index)  # compiles, and fills what is kept between calls
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(launches):
            launch(index)
    best = float("inf")
    for _ in range(CUDA_REPLAYS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, float(start.elapsed_time(end)) / 1e3)
    return best / launches
