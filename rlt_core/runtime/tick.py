"""One tick as a tensor program: enter, loop, decide, fill, leave, coda, head, sample.

Nothing here reads a value back to the host and no shape depends on data, so the same program runs
eagerly on a CPU and can be captured into a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import LoopedModel
from rlt_core.contract.specs import Entry
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.runtime.compaction import compact, pick
from rlt_core.runtime.context import Launch
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.emit import Emitted, Emitter
from rlt_core.runtime.rows import Rows
from rlt_core.runtime.services import Services
from rlt_core.runtime.slots import LEAVING, READY, RUN, Slots
from rlt_core.runtime.tick_rows import Batch, TickTensors, boundary_rows, num_to_last


class TickProgram:
    """The device's program for one tick; `services` holds pool, operators and attention."""

    def __init__(
        self,
        model: LoopedModel,
        slots: Slots,
        services: Services,
        tables: DeviceTables,
        decide: Decider,
        emitter: Emitter,
        *,
        entry: Entry,
        full: bool,
        min_leave: int,
        counts_entering: bool = False,
    ) -> None:
        """counts_entering: the prelude's products stop behind the last row that enters."""
        if entry is Entry.HOSTED:
            raise PluginError("strategy", f"entry rule '{entry.value}' does not exist yet")
        self.model, self.slots, self.services = model, slots, services
        self.tables, self.decide, self.emitter = tables, decide, emitter
        self.entry, self.full, self.min_leave = entry, full, min_leave
        self.counts_entering = counts_entering
        self.fills = bool(tables.fill.any())  # read once, at build

    def __call__(self, t: TickTensors) -> Emitted:
        """Run the tick; events, scores and counts come back as device tensors."""
        enters, parked = self._entering(t)
        batch = self._batch(t, enters)
        self.slots.note_depth(batch.slot, batch.position, None, batch.enters)
        if t.enters:
            self._prelude(t, batch)
        before = self.slots.state[batch.home]
        ctx = self._launch(t, batch)
        state = torch.where(batch.live[:, None], self.model.loop(before, ctx), before)
        decided, done = self.decide(batch, state, before, ctx, t)
        self._keep(t, batch, state, decided, done)
        self._hand_on(t)
        self._fill(batch, decided)
        waits, held = self._leaving(t) if t.leaves else (None, None)
        out = self.emitter.nothing() if waits is None else self._leave(t, waits)
        out.counts = self._counts(batch, decided, parked if held is None else parked | held, t)
        return out

    def _entering(self, t: TickTensors) -> tuple[Tensor, Tensor]:
        """Which decode rows enter at depth 1 and which park: bool [R] each."""
        s = self.slots
        ready = s.phase[t.decode_slots] == READY
        parked = ready & (s.position[t.decode_slots] >= s.page_limit[t.decode_slots])
        enters = ready & ~parked
        if self.entry is Entry.ALL_LEFT:
            busy = ((s.phase == RUN) | (s.phase == LEAVING)).any()
            enters = enters & ~busy
        s.phase[t.decode_slots] = torch.where(enters, RUN, s.phase[t.decode_slots])
        s.depth[t.decode_slots] = torch.where(enters, 0, s.depth[t.decode_slots])
        return enters, parked

    def _batch(self, t: TickTensors, enters: Tensor) -> Batch:
        s, rows = self.slots, t.decode_slots
        running = s.phase[rows] == RUN
        s.read_depth[rows] = torch.where(enters, 0, s.read_depth[rows])
        prompt = self._prompt_part(t)
        return Batch(
            home=torch.cat((rows, prompt.home)),
            slot=torch.cat((rows, prompt.slot)),
            position=torch.cat((s.position[rows], prompt.position)),
            # Rows that stand still count as depth 1: their entries are masked, but are indexed.
            depth=torch.cat((torch.where(running, s.depth[rows] + 1, 1), prompt.depth)),
            rule=torch.cat((torch.ones_like(rows), prompt.rule)),
            exit_at=torch.cat((torch.zeros_like(rows), prompt.exit_at)),
            live=torch.cat((running, prompt.live)),
            enters=torch.cat((enters, prompt.enters)),
        )

    def _prompt_part(self, t: TickTensors) -> Batch:
        """The prompt rows of the tick."""
        s = self.slots
        home = t.place + s.sentinel + 1
        # Padding of captured ticks belongs to the sentinel slot: it neither enters nor runs.
        there = t.slot != s.sentinel
        enters = (t.depth == 1) & there
        s.read_depth[home] = torch.where(enters, 0, s.read_depth[home])
        return Batch(
            home=home,
            slot=t.slot,
            position=t.position,
            depth=t.depth,
            rule=t.rule,
            exit_at=t.exit_at,
            # In mode skip a forced row that has left stands still while its cell goes on.
            live=there if self.full else (s.read_depth[home] == 0) & there,
            enters=enters,
        )

    def _prelude(self, t: TickTensors, batch: Batch) -> None:
        """State of entering rows; the others keep theirs."""
        s = self.slots
        entering = boundary_rows(batch, batch.enters, t.tiles, t.num_chunks)
        num_rows = num_to_last(batch.enters) if self.counts_entering else t.num_rows
        ctx = Launch(self.services, entering, s, chained=self._chained(batch), num_rows=num_rows)
        state = self.model.prelude(self._tokens(t), ctx)
        s.state[batch.home] = torch.where(batch.enters[:, None], state, s.state[batch.home])

    def _tokens(self, t: TickTensors) -> Tensor:
        """Input tokens of all rows."""
        return torch.cat((self.slots.token[t.decode_slots], t.token))

    def _chained(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Read-out states of the positions before, and for which rows they are given."""
        s = self.slots
        if s.options is None or s.options.chains is None:
            return None
        # A slot's home holds its last position's state until the next one has entered.
        given = s.options.chains[batch.slot] & (batch.rule == 1) & (batch.position > 0)
        return s.read_state[batch.slot], given

    def _launch(self, t: TickTensors, batch: Batch) -> Launch:
        loops = self.slots.int_params["loops"][batch.slot]
        write_plane, read_plane = self.tables.planes(batch.rule, loops, batch.depth)
        rows = Rows(
            slot=batch.slot,
            position=batch.position,
            depth=batch.depth,
            write_plane=write_plane,
            read_plane=read_plane,
            live=batch.live,
            tiles=t.tiles,
            num_chunks=t.num_chunks,
        )
        return Launch(self.services, rows, self.slots, num_rows=t.num_rows)

    def _keep(
        self, t: TickTensors, batch: Batch, state: Tensor, decided: Tensor, done: Tensor
    ) -> None:
        s, num_decode = self.slots, t.decode_slots.shape[0]
        self._keep_states(batch, state, decided)
        rows, ran, left = t.decode_slots, batch.live[:num_decode], done[:num_decode]
        s.depth[rows] = torch.where(ran, batch.depth[:num_decode], s.depth[rows])
        s.phase[rows] = torch.where(left, LEAVING, s.phase[rows])
        s.left_at[rows] = torch.where(left, t.tick, s.left_at[rows])

    def _keep_states(self, batch: Batch, state: Tensor, decided: Tensor) -> None:
        s = self.slots
        s.state[batch.home] = state
        s.read_depth[batch.home] = torch.where(decided, batch.depth, s.read_depth[batch.home])
        if self.full:
            old = s.read_state[batch.home]
            s.read_state[batch.home] = torch.where(decided[:, None], state, old)

    def _hand_on(self, t: TickTensors) -> None:
        """The last state of a cell that ends goes to its slot's home, for the next position."""
        if t.tail is not None:
            s = self.slots
            s.read_state[t.slot[t.tail]] = s.read_state[t.place[t.tail] + s.sentinel + 1]

    def _fill(self, batch: Batch, decided: Tensor) -> None:
        """Deeper planes of rows that leave early take the values of their last plane, or their
        position is hidden there."""
        s = self.slots
        if self.full:
            return
        s.note_depth(batch.slot, batch.position, batch.depth, decided)
        if self.fills:
            loops = s.int_params["loops"][batch.slot]
            source, targets = self.tables.exits(batch.rule, loops, batch.depth, decided)
            self.services.pool.fill(s.tables, batch.slot, batch.position, source, targets)

    def _leaving(self, t: TickTensors) -> tuple[Tensor, Tensor | None]:
        """Rows that may go to the head, and those that park before it until the mask of their
        output has come: bool [R] each; None where no resident has masks."""
        rows = t.decode_slots
        waits, missing = self.slots.phase[rows] == LEAVING, self.emitter.missing(rows)
        return (waits, None) if missing is None else (waits & ~missing, waits & missing)

    def _leave(self, t: TickTensors, waits: Tensor) -> Emitted:
        """Coda for rows that leave and for finished cells; head and sampling where needed."""
        s, rows = self.slots, t.decode_slots
        index = compact(waits & self._may_leave(t, waits), s.left_at[rows], t.num_leave)
        slot = pick(rows, index, s.sentinel)
        home = torch.cat((self._home(slot), t.place[t.finish] + s.sentinel + 1))
        all_slot = torch.cat((slot, t.slot[t.finish]))
        position = torch.cat((s.position[slot], t.position[t.finish]))
        coda_rows = Rows(
            slot=all_slot,
            position=position,
            depth=s.read_depth[home],
            write_plane=torch.zeros_like(home),
            read_plane=torch.zeros_like(home),
            live=all_slot != s.sentinel,  # no empty places, no padding of captured ticks
            tiles=t.coda_tiles,
            num_chunks=t.num_chunks,
        )
        ctx = Launch(self.services, coda_rows, s)
        state = self.model.coda(s.read_state[home], ctx)
        return self.emitter(self.model, state, slot, home, position, t, ctx)

    def _home(self, slot: Tensor) -> Tensor:
        """Where the rows of these slots lie that may leave: int64 [R]."""
        return slot

    def _num_rows(self, t: TickTensors) -> int:
        """Decode rows of the tick."""
        return t.decode_slots.shape[0]

    def _may_leave(self, t: TickTensors, waits: Tensor) -> Tensor:
        """Boundary work waits for `min_leave` rows unless nothing else runs or one waits long."""
        if self.min_leave <= 1 or not len(waits):
            return torch.ones_like(waits)
        s = self.slots
        phase = s.phase[t.decode_slots]
        unparked = s.position[t.decode_slots] < s.page_limit[t.decode_slots]
        others = ((phase == RUN) | ((phase == READY) & unparked)).any() | t.has_prompt
        longest = torch.where(waits, t.tick - s.left_at[t.decode_slots], 0).max()
        patience = s.int_params["loops"][t.decode_slots].max()
        enough = waits.sum() >= self.min_leave
        return (enough | ~others | (longest >= patience)).expand_as(waits)

    def _counts(self, batch: Batch, decided: Tensor, parked: Tensor, t: TickTensors) -> Tensor:
        """[rows that ran, parked, lowest depth, highest depth, decode rows decided below D]."""
        loops = self.slots.int_params["loops"][batch.slot]
        early = (decided & (batch.depth < loops))[: self._num_rows(t)].sum()
        high = torch.where(batch.live, batch.depth, 0).amax()
        low = torch.where(batch.live, batch.depth, 1 << 30).amin()
        return torch.stack((batch.live.sum(), parked.sum(), low, high, early))
