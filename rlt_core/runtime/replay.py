"""A tick that is run again and again on the same tensors: a captured graph on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlt_core.runtime.collect import Results


class Replay:
    """Runs `run` on tensors at fixed addresses, all of which it keeps alive through `run`.

    On a CPU nothing can be captured and `run` is called: so the padded ticks are tested there.
    """

    def __init__(self, run: Callable[[], Results], device: torch.device, pool: Any) -> None:
        self._run = run
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture(pool)
        else:
            run()  # as a capture does: a tick in which nothing happens must not fail

    def __call__(self) -> Results:
        """One tick; the results stay valid until the next one of the stage."""
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._results

    def _capture(self, pool: Any) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()  # compiles what is to be compiled
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with no_garbage(), torch.cuda.graph(graph, pool=pool):
            self._results = self._run()
        self._graph = graph


@contextmanager
def no_garbage() -> Iterator[None]:
    """Python's garbage collector stands still: freeing the graph of an engine that is gone would
    end a capture that is under way."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def shared_pool(device: torch.device) -> Any:
    """The memory that the graphs of a stage share: one tick runs at a time."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None
