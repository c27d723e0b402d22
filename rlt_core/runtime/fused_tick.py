"""A tick with its bookkeeping in fused steps (contract.steps).

The same as TickProgram on the same rows, to the bit; that one also serves where no plugin gives
steps, and most ticks with prompt rows. What differs where a slot has several rows, and where there
are prompt rows, is left to DecodeTick, LaneTick and MixedTick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from rlt_core.contract.protocols import LoopedModel
from rlt_core.contract.steps import (
    Drawn,
    LeavingRows,
    RowSteps,
    RunningRows,
    SlotArrays,
)
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.runtime.collect import Results
from rlt_core.runtime.context import Launch
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.emit import Emitter
from rlt_core.runtime.rows import Rows
from rlt_core.runtime.sampling import Sampled
from rlt_core.runtime.services import Services
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import Batch, TickTensors, num_to_last
from rlt_core.runtime.tiles import Tiles


class FusedTick(ABC):
    """The fused form of a TickProgram."""

    def __init__(self, program: TickProgram, rows: RowSteps) -> None:
        self.model: LoopedModel = program.model
        self.slots: Slots = program.slots
        self.services: Services = program.services
        self.decide: Decider = program.decide
        self.emitter: Emitter = program.emitter
        self.full, self.min_leave = program.full, program.min_leave
        self._counts_entering = program.counts_entering
        self._row_steps, self._arrays = rows, slot_arrays(program.slots, program.tables)
        self._tracks = [
            program.services.pool.filled(track)
            for track in program.services.tracks.values()
            if track.per_depth and program.fills
        ]
        # The first per-depth track: the loop's own, whose page tables `enter` finds.
        tracks = program.services.tracks.values()
        self._looped = next(track for track in tracks if track.per_depth)
        self._zeros: dict[int, Tensor] = {}
        program.emitter.draw = self.draw

    def apply(self, limits: Tensor, at: Tensor, page: Tensor) -> None:
        """The host's changes of page limits and tables (RowSteps.apply)."""
        self._row_steps.apply(self._arrays, limits, at, page)

    def draw(self, logits: Tensor, slot: Tensor, position: Tensor) -> Drawn:
        """Plain tokens for ticks of the TickProgram, as Emitter.sample draws them; rows of the
        sentinel slot have token 0 and are not bad."""
        live = slot != self.slots.sentinel
        rows = LeavingRows(
            home=slot,
            slot=slot,
            position=position - 1,
            depth=slot,
            live=live,
            count=torch.full((1,), len(slot), dtype=torch.int32, device=slot.device),
        )
        drawn = self._row_steps.sample(self._arrays, rows, logits)
        token, bad = torch.where(live, drawn.token, 0), drawn.bad & live
        return replace(drawn, token=token, bad=bad)

    def __call__(self, t: TickTensors) -> Results:
        """Run the tick."""
        s, arrays, steps = self.slots, self._arrays, self._row_steps
        tick = self._number(t.tick)
        rows = self._enter(t)
        before = self._before(rows, t)
        ctx = self._launch(rows, t)
        state = self.model.loop(before, ctx)
        says = self._says(rows, state, before, ctx, t)
        decided, counts = self._settle(rows, says, tick, t)
        steps.keep(s.state, rows, state, rows.live)
        if self.full:
            steps.keep(s.read_state, rows, state, decided)
        else:
            for track in self._tracks:
                steps.fill_planes(arrays, rows, decided, track)
        return self._leave(t, tick, counts)

    @abstractmethod
    def _enter(self, t: TickTensors) -> RunningRows:
        """The rows of the tick."""

    @abstractmethod
    def _settle(
        self, rows: RunningRows, says: Tensor | None, tick: Tensor, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        """(rows that are read now, bool [R]; counts int64 [5])."""

    @abstractmethod
    def _leave(self, t: TickTensors, tick: Tensor, counts: Tensor) -> Results:
        """Coda, head and sampling; the slots' next tokens."""

    def _number(self, value: int | Tensor) -> Tensor:
        """A number of the tick, int64 of no dimension: in captured ticks it is one already."""
        if isinstance(value, int):
            return torch.full((), value, dtype=torch.int64, device=self.slots.device)
        return value

    def _before(self, rows: RunningRows, t: TickTensors) -> Tensor:
        """The state that each row takes into this loop."""
        s = self.slots
        chained = None
        if s.options is not None and s.options.chains is not None:
            given = s.options.chains[rows.slot] & (rows.position > 0)
            chained = (s.read_state[rows.slot], given)
        at = self._rows(rows, t, depth=self._none(rows.slot), live=rows.enters)
        num = num_to_last(rows.enters) if self._counts_entering else t.num_rows
        ctx = Launch(self.services, at, s, chained=chained, num_rows=num)
        entering = self.model.prelude(rows.token, ctx)
        return self._row_steps.mix(entering, s.state, rows)

    def _launch(self, rows: RunningRows, t: TickTensors) -> Launch:
        at = self._rows(rows, t, rows.depth, rows.live)
        return Launch(self.services, at, self.slots, num_rows=t.num_rows)

    def _rows(self, rows: RunningRows, t: TickTensors, depth: Tensor, live: Tensor) -> Rows:
        runs = live is rows.live
        return Rows(
            slot=rows.slot,
            position=rows.position,
            depth=depth,
            write_plane=rows.plane,
            read_plane=rows.plane,
            live=live,
            tiles=t.tiles,
            num_chunks=t.num_chunks,
            key_len=rows.key_len if runs else None,
            page_rows={(self._looped.name, 0): rows.page_row} if runs else {},
        )

    def _none(self, like: Tensor) -> Tensor:
        """Zeros int64 of that length, made once and never written."""
        num = like.shape[0]
        if num not in self._zeros:
            self._zeros[num] = torch.zeros_like(like)
        return self._zeros[num]

    def _says(
        self, rows: RunningRows, state: Tensor, before: Tensor, ctx: Launch, t: TickTensors
    ) -> Tensor | None:
        """The policy's word on the rows that ask it, the first of them or all; None where it never
        has one."""
        if not self.decide.may_exit:
            return None
        num = t.asks.shape[0]
        asking = Batch(
            home=rows.home,
            slot=rows.slot,
            position=rows.position,
            depth=rows.depth,
            rule=rows.plane,
            exit_at=rows.plane,
            live=rows.live,
            enters=rows.enters,
        )
        if num == rows.slot.shape[0]:
            return self.decide.says(asking, state, before, ctx, None, t)
        first = slice(num)
        return self.decide.says(asking.rows(first), state, before, ctx, first, t)

    def _coda_rows(
        self, leaving: LeavingRows, position: Tensor, tiles: Tiles, num_chunks: int
    ) -> Rows:
        """Rows of the coda and head, at `position` int64 [L]."""
        none = self._none(leaving.slot)
        return Rows(
            slot=leaving.slot,
            position=position,
            depth=leaving.depth,
            write_plane=none,
            read_plane=none,
            live=leaving.live,
            tiles=tiles,
            num_chunks=num_chunks,
        )

    def _sample(self, leaving: LeavingRows, logits: Tensor) -> tuple[Sampled | None, Drawn]:
        """The tokens of leaving rows; the first is None where no more than they was asked for."""
        if not self.emitter.needs.full and not self.emitter.needs.num_top:
            return None, self._row_steps.sample(self._arrays, leaving, logits)
        found = self.emitter.sample(logits, leaving.slot, leaving.position + 1)
        self.emitter.count(leaving.slot, found)
        return found, drawn_of(found)

    def _results(self, ints: Tensor, sampled: Sampled | None, logits: Tensor) -> Results:
        found = Results(ints=ints)
        if sampled is not None:
            found.top_ids, found.top_logprobs = sampled.top_ids, sampled.top_logprobs
        if self.emitter.keep_logits:
            found.logits = logits
        return found


def drawn_of(found: Sampled) -> Drawn:
    """What runtime.sampling gave, for the steps."""
    return Drawn(token=found.token, logprob=found.logprob, rank=found.rank, bad=found.bad)


def slot_arrays(slots: Slots, tables: DeviceTables) -> SlotArrays:
    """The arrays that the steps work on."""
    ints = slots.int_params
    return SlotArrays(
        phase=slots.phase,
        token=slots.token,
        position=slots.position,
        depth=slots.depth,
        num_out=slots.num_out,
        left_at=slots.left_at,
        page_limit=slots.page_limit,
        read_depth=slots.read_depth,
        loops=ints["loops"],
        min_loops=ints["min_loops"],
        max_loops=ints["max_loops"],
        max_tokens=ints["max_tokens"],
        max_position=ints["max_position"],
        use_policy=slots.use_policy,
        stop_ids=slots.stop_ids,
        seed=slots.seed,
        temperature=slots.float_params["temperature"],
        tables=slots.tables,
        key_depth=slots.key_depth,
        write=tables.write,
        fill=tables.fill,
        max_depth=slots.config.max_depth,
    )
