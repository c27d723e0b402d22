"""Which rows exit after a loop: the policy's word within the bounds that the core keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.protocols import ExitPolicy, LoopedModel
from rlt_core.runtime.context import Launch
from rlt_core.runtime.logit_parts import logit_parts
from rlt_core.runtime.services import Services
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_rows import Batch, TickTensors, boundary_rows


class Decider:
    """Decides on the device, from signals to the depth at which a row is read out."""

    def __init__(
        self,
        model: LoopedModel,
        slots: Slots,
        services: Services,
        policy: ExitPolicy,
        *,
        full: bool,
        signals: frozenset[str],
        may_exit: bool = True,
    ) -> None:
        """may_exit: False when the policy never says that a row leaves."""
        self.model, self.slots, self.services = model, slots, services
        self.policy, self.full, self.signals = policy, full, signals
        self.may_exit = may_exit

    def __call__(
        self, batch: Batch, state: Tensor, before: Tensor, ctx: Launch, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        """(rows whose read-out is fixed by this loop, rows whose loops end now): bool [rows]."""
        s = self.slots
        says = torch.zeros_like(batch.live)
        if self.may_exit:
            says[t.asks] = self.says(batch.rows(t.asks), state, before, ctx, t.asks, t)
        says = says & s.use_policy[batch.slot]
        most = s.int_params["max_loops"][batch.slot]
        least = s.int_params["min_loops"][batch.slot]
        loops = s.int_params["loops"][batch.slot]
        by_policy = (batch.depth >= most) | ((batch.depth >= least) & says)
        forced = batch.exit_at > 0
        leaves = torch.where(forced, batch.depth >= batch.exit_at, by_policy)
        leaves = leaves | (batch.depth >= loops)
        open_ = batch.live & (s.read_depth[batch.home] == 0)
        decided = open_ & leaves
        done = batch.live & (batch.depth >= loops) if self.full else decided
        return decided, done

    def says(
        self,
        asking: Batch,
        state: Tensor,
        before: Tensor,
        ctx: Launch,
        index: Tensor | slice | None,
        t: TickTensors,
    ) -> Tensor:
        """What the policy says of the rows that ask it: bool [A]. Others leave by what is known.

        index int64 [A] or a slice: where those rows are in state and before; None: all of them
        ask."""
        signals = self._signals(state, before, ctx)
        if index is not None:
            signals = {name: values[index] for name, values in signals.items()}
            state = state[index]
        if Word.LOGITS not in self.signals:
            return self._decide(asking, signals)
        read_out, peek = self._peek(asking, state, t)
        parts = []
        for rows in logit_parts(len(read_out), self.slots.vocab_size):
            seen = {name: values[rows] for name, values in signals.items()}
            seen["logits"] = self.model.head(read_out[rows], peek)
            parts.append(self._decide(asking.rows(rows), seen))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decide(self, asking: Batch, signals: dict[str, Tensor]) -> Tensor:
        """The policy's word on these rows: bool [A]; its state of them goes on."""
        s = self.slots
        kept = s.policy_rows(asking.home, asking.enters)
        params = s.row_params(asking.slot, asking.position)
        says, new = self.policy.decide(signals, kept, params, asking.depth)
        for spec in s.policy_specs:
            live = asking.live.view(-1, *([1] * len(spec.shape)))
            value = torch.where(live, new[spec.name], kept[spec.name])
            s.policy_state[spec.name][asking.home] = value
        return says

    def _signals(self, state: Tensor, before: Tensor, ctx: Launch) -> dict[str, Tensor]:
        """The model's own signals of all rows; the state comes with the one before the loop."""
        names = self.signals - {Word.LOGITS}
        if not names:
            return {}
        found = dict(self.model.signals(state, before, ctx, names))
        if Word.STATE in names:
            earlier = self.model.signals(before, before, ctx, frozenset({Word.STATE.value}))
            found["state_before"] = earlier["state"]
        return found

    def _peek(self, asking: Batch, state: Tensor, t: TickTensors) -> tuple[Tensor, Launch]:
        """What the head would read now, and its launch; coda runs without storing."""
        assert t.ask_tiles is not None, self.signals
        rows = boundary_rows(asking, asking.live, t.ask_tiles, t.num_chunks)
        rows.depth = asking.depth
        ctx = Launch(self.services, rows, self.slots, store=False)
        return self.model.coda(state, ctx, store=False), ctx
