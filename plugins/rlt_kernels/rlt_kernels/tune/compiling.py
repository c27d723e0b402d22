"""Compiling tiles in worker processes: the parent finds them in Triton's cache on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context

from rlt_kernels.tiles import Key, Tile

Task = tuple[Key, Tile]


@contextmanager
def compilers(workers: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Worker processes for `compile_all`; one less than there are processors."""
    count = workers or max((os.cpu_count() or 2) - 1, 1)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool


def compile_all(pool: ProcessPoolExecutor, tasks: list[Task]) -> dict[Task, str]:
    """Compile every task; returns the error of each that does not compile or does not load."""
    waiting = {pool.submit(_compile, task): task for task in dict.fromkeys(tasks)}
    errors = {}
    for future in as_completed(waiting):
        error = future.result()
        if error:
            errors[waiting[future]] = error
    return errors


def _compile(task: Task) -> str:
    import torch

    from rlt_kernels.products import make_launch

    key, tile = task
    dtype = getattr(torch, key.dtype)

    def rows(count: int, width: int) -> torch.Tensor:
        return torch.empty((count, width), device="cuda", dtype=dtype)

    try:
        x = rows(1, key.k)
        weight = rows(1 if key.op == "linear" else 2, key.k)
        launch = make_launch(tile, key.op, x, key.n)
        compiled = launch.warm(x, weight, None, None, rows(1, 16))
        compiled._init_handles()  # builds its launcher too, and tells what does not fit the chip
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""
