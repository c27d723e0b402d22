"""How fast the device reads its memory: what the floor of a benchmark is divided by.

Two plain readers of a buffer far larger than any cache, each read several times: the sum of all
its float32 values, and a bfloat16 matrix times a vector. The fastest single read counts, since a
floor must not be beaten: bytes of the buffer / seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

CUDA_BYTES, CPU_BYTES = 4 << 30, 256 << 20
WARM, CUDA_TIMES, CPU_TIMES = 2, 20, 5
_COLUMNS = 4096


def read_bandwidth(device: torch.device, num_bytes: int | None = None) -> float:
    """Bytes a second, measured now on `device`."""
    size = num_bytes or (CUDA_BYTES if device.type == "cuda" else CPU_BYTES)
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    # The same bits as bfloat16: 0 and 1 by turns.
    matrix = buffer.view(torch.bfloat16).view(-1, min(_COLUMNS, size // 2))
    vector = torch.ones(matrix.shape[1], dtype=torch.bfloat16, device=device)
    readers: list[Callable[[], Tensor]] = [buffer.sum]
    if device.type == "cuda":
        readers.append(lambda: torch.mv(matrix, vector))
    best = min(_seconds(reader, device) for reader in readers)
    return buffer.nbytes / best


def _seconds(read: Callable[[], Tensor], device: torch.device) -> float:
    """The fastest of several reads."""
    on_gpu = device.type == "cuda"
    clock, times = (_cuda_seconds, CUDA_TIMES) if on_gpu else (_cpu_seconds, CPU_TIMES)
    for _ in range(WARM):
        clock(read)
    return min(clock(read) for _ in range(times))


def _cpu_seconds(read: Callable[[], Tensor]) -> float:
    start = perf_counter()
    read()
    return perf_counter() - start


def _cuda_seconds(read: Callable[[], Tensor]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # Two reads back to back, the second timed: the launch itself is not waited for.
    read()
    start.record()
    read()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
