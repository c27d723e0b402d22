"""Launches of a model's methods on rows of our choosing, over a pool of their own.

Eight texts of 32 tokens make 256 rows. `text` runs them once as whole prompts, so that the pool
holds every plane; afterwards any rows can be launched again at any depth, each alone in its tile
as decode rows are, and must give what they gave before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.protocols import LoopContext, WeightedModel
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import LastExited
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.context import Launch
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.executor import Executor
from rlt_core.runtime.rows import Rows
from rlt_core.runtime.tiles import make_tiles, single_tiles
from rlt_core.runtime.upload import Upload
from rlt_core.testing.checks.subjects import SEED

NUM_TEXTS, TEXT_LEN = 8, 32
NUM_ROWS = NUM_TEXTS * TEXT_LEN
SIGNALS = frozenset({"gate", "state"})


@dataclass(frozen=True, slots=True)
class Text:
    """What the whole texts gave: states [D + 1, 256, W] (index 0: prelude), the coda's state,
    logits [256, V], and the signals after the last loop."""

    states: Tensor
    coda: Tensor
    logits: Tensor
    signals: Mapping[str, Tensor]


class Rig:
    """A model, a pool with room for all texts, and the launches of its methods.

    Rows are numbered text by text; every method takes the numbers of the rows to launch (default
    all) in the order in which they are to stand.
    """

    def __init__(self, plan: Plan, model: WeightedModel) -> None:
        self.plan, self.model, self.loops = plan, model, plan.max_depth
        page_size = plan.choice.kv_page_size
        layout = LastExited()
        kv = plan_kv(
            plan.shape,
            layout,
            page_size=page_size,
            max_depth=self.loops,
            element_bytes=getattr(torch, plan.dtype).itemsize,
        )
        pages = -(-TEXT_LEN // page_size)
        num_pages = NUM_TEXTS * kv.table_rows * pages
        config = EngineConfig(
            num_slots=NUM_TEXTS,
            num_places=TEXT_LEN,
            chunk_size=TEXT_LEN,
            page_size=page_size,
            num_pages=1 + num_pages,
            max_len=TEXT_LEN,
            max_depth=self.loops,
            debug=True,
        )
        executor = Executor(plan, config, kv, model, layout)
        self.services, self.slots, self.pool = executor.services, executor.slots, executor.pool
        own = torch.arange(1, 1 + num_pages, dtype=torch.int32)
        self.slots.tables[:-1, :, :pages] = own.view(NUM_TEXTS, kv.table_rows, pages)
        draw = torch.Generator().manual_seed(SEED)
        self.tokens = torch.randint(plan.shape.vocab_size, (NUM_ROWS,), generator=draw)
        self.declared = frozenset(plan.model.provides & SIGNALS)
        self.all = torch.arange(NUM_ROWS)
        self.watch: Callable[[LoopContext], Any] | None = None  # wraps every context

    @cached_property
    def text(self) -> Text:
        """The whole texts, run once as prompts."""
        states = [self.prelude(whole=True)]
        for depth in range(1, self.loops + 1):
            states.append(self.loop(states[-1], depth=depth, whole=True))
        coda = self.coda(states[-1], whole=True)
        logits = self.head(coda)
        signals = self.signals(states[-1], states[-2])
        return Text(torch.stack(states), coda, logits, signals)

    def context(
        self,
        rows: Tensor | None = None,
        depth: Tensor | int = 0,
        *,
        whole: bool = False,
        state_seed: int = 0,
    ) -> LoopContext:
        """The context of a launch. `whole`: all rows as eight prompt cells."""
        rows = self.all if rows is None else rows
        slot, position = rows // TEXT_LEN, rows % TEXT_LEN
        depths = torch.as_tensor(depth).expand(len(rows)).clone()
        plane = (depths - 1).clamp(min=0)
        cells = np.arange(NUM_TEXTS + 1) * TEXT_LEN
        device = rows.device
        placed = Rows(
            slot=slot,
            position=position,
            depth=depths,
            write_plane=plane,
            read_plane=plane,
            live=torch.ones_like(rows, dtype=torch.bool),
            tiles=make_tiles(0, cells, Upload(device).ints)
            if whole
            else single_tiles(len(rows), device),
            num_chunks=1,
        )
        self.slots.state_seed[:] = state_seed
        # No row follows a generated one here, so nobody has a predecessor.
        none = (self.slots.state[slot], torch.zeros_like(placed.live))
        ctx = Launch(self.services, placed, self.slots, chained=none)
        return self.watch(ctx) if self.watch else ctx

    def prelude(self, rows: Tensor | None = None, tokens: Tensor | None = None, **how: Any) -> Any:
        """The prelude of these rows, of their own tokens unless others are given."""
        rows = self.all if rows is None else rows
        tokens = self.tokens[rows] if tokens is None else tokens
        return self.model.prelude(tokens, self.context(rows, **how))

    def loop(
        self, state: Tensor, rows: Tensor | None = None, depth: Tensor | int = 1, **how: Any
    ) -> Any:
        """Loop `depth` of these rows from `state`."""
        return self.model.loop(state, self.context(rows, depth, **how))

    def signals(
        self,
        state: Tensor,
        before: Tensor,
        rows: Tensor | None = None,
        names: frozenset[str] | None = None,
    ) -> Any:
        """The declared signals (or those named) after a loop."""
        ctx = self.context(rows, self.loops)
        asked = self.declared if names is None else names
        return self.model.signals(state, before, ctx, asked) if asked else {}

    def coda(
        self, state: Tensor, rows: Tensor | None = None, *, store: bool = True, **how: Any
    ) -> Any:
        """The coda of these rows, read out at full depth."""
        return self.model.coda(state, self.context(rows, self.loops, **how), store=store)

    def head(self, state: Tensor, rows: Tensor | None = None) -> Any:
        """The logits of these rows."""
        return self.model.head(state, self.context(rows, self.loops))
