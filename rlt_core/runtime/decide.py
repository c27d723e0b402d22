"""Which rows exit after a loop: the policy's word within the bounds that the core keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.protocols import ExitPolicy, LoopedModel
from rlt_core.runtime.context import Launch, Services
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_rows import Batch, TickTensors, boundary_rows
from rlt_core.runtime.tiles import single_tiles


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
    ) -> None:
        self.model, self.slots, self.services = model, slots, services
        self.policy, self.full, self.signals = policy, full, signals

    def __call__(
        self, batch: Batch, state: Tensor, before: Tensor, ctx: Launch, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        """(rows whose read-out is fixed by this loop, rows whose loops end now): bool [rows]."""
        s = self.slots
        says = self._says(batch, state, before, ctx, t)
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

    def _says(
        self, batch: Batch, state: Tensor, before: Tensor, ctx: Launch, t: TickTensors
    ) -> Tensor:
        s = self.slots
        asked = self.signals - {"logits"}
        signals = dict(self.model.signals(state, before, ctx, asked) if asked else {})
        if "logits" in self.signals:
            signals["logits"] = self._peek_logits(batch, state, t)
        kept = {name: tensor[batch.home] for name, tensor in s.policy_state.items()}
        params = s.row_params(batch.slot, batch.position)
        says, new = self.policy.decide(signals, kept, params, batch.depth)
        for spec in s.policy_specs:
            live = batch.live.view(-1, *([1] * len(spec.shape)))
            value = torch.where(live, new[spec.name], kept[spec.name])
            s.policy_state[spec.name][batch.home] = value
        return says

    def _peek_logits(self, batch: Batch, state: Tensor, t: TickTensors) -> Tensor:
        """Logits of every row's state now; coda runs without storing."""
        alone = single_tiles(batch.slot.shape[0], state.device)
        rows = boundary_rows(batch, batch.live, alone, t.num_chunks)
        rows.depth = batch.depth
        seed = self.slots.state_seed[batch.slot]
        ctx = Launch(self.services, rows, self.slots.tables, seed, store=False)
        return self.model.head(self.model.coda(state, ctx, store=False), ctx)
