"""The fused tick of plain prompts' rows, beside decode rows of slots that have one row each."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.contract.mixed_steps import MixedSteps, PromptPart
from rlt_core.contract.steps import RunningRows
from rlt_core.runtime.collect import Results
from rlt_core.runtime.decode_tick import DecodeTick
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import TickTensors


class MixedTick(DecodeTick):
    """FusedTick of a TickProgram for ticks that are TickTensors.plain."""

    def __init__(self, program: TickProgram, steps: MixedSteps) -> None:
        super().__init__(program, steps)
        self._mixed = steps

    def _enter(self, t: TickTensors) -> RunningRows:
        return self._mixed.enter_mixed(
            self._arrays,
            t.decode_slots,
            _prompt(t),
            all_left=self._all_left,
            full=self.full,
            first=self._looped.first,
            parts=self._looped.parts,
        )

    def _settle(
        self, rows: RunningRows, says: Tensor | None, tick: Tensor, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        return self._mixed.settle_mixed(self._arrays, rows, _prompt(t), says, tick, full=self.full)

    def _leave(self, t: TickTensors, tick: Tensor, counts: Tensor) -> Results:
        if not t.leaves:
            return self._nothing(counts)
        leaving = self._mixed.leave_mixed(
            self._arrays,
            t.decode_slots,
            _prompt(t),
            t.finish,
            tick,
            places=t.num_leave,
            min_leave=self.min_leave,
        )
        return self._emit(leaving, counts, t)

    def _nothing(self, counts: Tensor) -> Results:
        """What a tick tells in which no row can leave."""
        s = self.slots
        found = Results(ints=counts)
        if self.emitter.keep_logits:
            found.logits = torch.zeros(0, s.vocab_size, device=s.device)
        return found


def _prompt(t: TickTensors) -> PromptPart:
    return PromptPart(
        place=t.place,
        slot=t.slot,
        token=t.token,
        position=t.position,
        depth=t.depth,
        exit_at=t.exit_at,
        rule=t.rule,
    )
