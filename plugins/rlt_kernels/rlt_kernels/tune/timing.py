"""Time on the device by replaying a CUDA graph of many launches over several copies."""

from __future__ import annotations

from collections.abc import Callable

import torch

# More than any L2 cache, so that a weight is always read from memory.
COPIES_BYTES = 256 << 20
MOST_COPIES = 64


def num_copies(weight_bytes: int) -> int:
    """Copies of a weight that together leave the L2 cache."""
    return min(max(-(-COPIES_BYTES // weight_bytes), 2), MOST_COPIES)


def graph_micros(launch: Callable[[int], None], *, launches: int, replays: int = 5) -> float:
    """Microseconds of one `launch(i)`, i from 0 to launches - 1; the best replay counts."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launch(0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(launches):
            launch(index)
    graph.replay()
    best = float("inf")
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best * 1000 / launches
