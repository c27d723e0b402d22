"""Ticks of decode rows as captured CUDA graphs, one for each padded row count and variant of
sampling. What the host decides reaches a graph through one buffer, the inbox, in one copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import NUM_PROMPT_COLUMNS, EngineConfig, PromptRows, TickInput
from rlt_core.runtime.collect import Results
from rlt_core.runtime.emit import Emitter
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors

# Table changes that one graph applies; more of them go ahead of it.
NUM_CHANGES = 1024
# Ticks in flight and one more: a host buffer is filled again when its tick has been collected.
_RING = 3


@dataclass(frozen=True, slots=True)
class _Graph:
    """`tensors` are read at every replay and made outside: they must live as long."""

    graph: torch.cuda.CUDAGraph
    results: Results
    tensors: TickTensors


class TickGraphs:
    """The captured ticks of one stage; capture() must have run before a tick."""

    def __init__(
        self,
        run: Callable[[TickTensors], Results],
        apply: Callable[[Tensor, Tensor, Tensor], None],
        slots: Slots,
        emitter: Emitter,
        config: EngineConfig,
        inputs: TickInputs,
    ) -> None:
        """run: one tick, whose sampling follows emitter.needs. apply: page limits int64 [S], flat
        entries of the page tables int64 [N] and the pages that go there."""
        self._apply = apply
        self._run, self._slots, self._emitter, self._inputs = run, slots, emitter, inputs
        self._rows = row_counts(config.num_slots)
        self._variants = variants(config.max_logprobs)
        self._chunks = config.table_width * config.page_size // 128
        self._sizes = [1, config.num_slots, self._rows[-1], NUM_CHANGES, NUM_CHANGES]
        device, total = self._slots.device, sum(self._sizes)
        self._inbox = torch.zeros(total, dtype=torch.int64, device=device)
        self._ring = torch.zeros((_RING, total), dtype=torch.int64, pin_memory=True)
        self._idle = self._slots.tables[:-1].numel()  # an entry of the sentinel slot
        self._graphs: dict[tuple[int, Needs], _Graph] = {}
        self._turn = self._version = 0

    def capture(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Capture every graph, the largest first; progress(done, of) after each."""
        self._slots.make_room()
        self._fill(None)
        self._inbox.copy_(self._ring[0])
        self._version, pool = self._slots.version, torch.cuda.graph_pool_handle()
        todo = [(rows, needs) for rows in reversed(self._rows) for needs in self._variants]
        for done, (rows, needs) in enumerate(todo):
            self._graphs[rows, needs] = self._captured(rows, needs, pool)
            progress(done + 1, len(todo))

    def run(self, tick: TickInput, needs: Needs) -> Results | None:
        """Replay a tick, table changes and all; None when no graph fits it."""
        num = len(tick.decode_slots)
        if self._slots.version != self._version:
            return None  # more tables at once than there was room for: rare, and right all the same
        if len(tick.prompt) or not num or len(tick.table_at) > NUM_CHANGES:
            return None
        rows = next(rows for rows in self._rows if rows >= num)
        found = self._graphs[rows, next(v for v in self._variants if v.covers(needs))]
        self._fill(tick)
        self._inbox.copy_(self._ring[self._turn], non_blocking=True)
        self._turn = (self._turn + 1) % _RING
        found.graph.replay()
        return found.results

    def _fill(self, tick: TickInput | None) -> None:
        """The next host buffer: tick, page limits, decode slots, table changes; padding does
        nothing but to the sentinel slot."""
        parts = torch.split(self._ring[self._turn], self._sizes)
        number, limits, slots, at, page = (part.numpy() for part in parts)
        num_slots = len(limits)
        if tick is None:
            slots[:], at[:], page[:] = num_slots, self._idle, 0
            return
        number[0] = tick.tick
        limits[:] = tick.page_limit
        num, changes = len(tick.decode_slots), len(tick.table_at)
        slots[:num], slots[num:] = tick.decode_slots, num_slots
        at[:changes], at[changes:] = tick.table_at, self._idle
        page[:changes], page[changes:] = tick.table_page, 0

    def _captured(self, rows: int, needs: Needs, pool: Any) -> _Graph:
        tensors = self._tensors(rows)
        self._emitter.needs = needs
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._tick(tensors)  # compiles what is to be compiled
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            results = self._tick(tensors)
        return _Graph(graph, results, tensors)

    def _tick(self, tensors: TickTensors) -> Results:
        _, limits, _, at, page = torch.split(self._inbox, self._sizes)
        self._apply(limits, at, page)
        return self._run(tensors)

    def _tensors(self, rows: int) -> TickTensors:
        """A tick of `rows` decode rows alone that reads the inbox."""
        columns = np.zeros((NUM_PROMPT_COLUMNS, 0), np.int64)
        prompt = PromptRows(tick=0, columns=columns, cell_start=np.zeros(1, np.int64))
        number, _, slots, _, _ = torch.split(self._inbox, self._sizes)
        made = self._inputs.of(0, np.arange(rows), prompt, self._chunks)
        return replace(made, tick=number[0], decode_slots=slots[:rows])


def row_counts(most: int) -> list[int]:
    """The padded row counts for up to `most` decode rows, ascending: powers of two, and from 16 on
    one between each two."""
    found, size = [], 1
    while size < most:
        found.append(size)
        if size >= 16 and size * 3 // 2 < most:
            found.append(size * 3 // 2)
        size *= 2
    return [*found, most]


def variants(most_logprobs: int) -> tuple[Needs, ...]:
    """The kinds of sampling that are captured, each covering the ones before it."""
    return (
        Needs(),
        Needs(full=True),
        Needs(full=True, filters=True, num_top=most_logprobs),
    )
