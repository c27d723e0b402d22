"""The fused tick of slots that have one row each."""

from __future__ import annotations

from torch import Tensor

from rlt_core.contract.specs import Entry
from rlt_core.contract.steps import DecodeSteps, LeavingRows, RunningRows
from rlt_core.runtime.collect import Results
from rlt_core.runtime.context import Launch
from rlt_core.runtime.fused_tick import FusedTick
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import TickTensors


class DecodeTick(FusedTick):
    """FusedTick of a TickProgram."""

    def __init__(self, program: TickProgram, steps: DecodeSteps) -> None:
        super().__init__(program, steps)
        self.steps, self._all_left = steps, program.entry is Entry.ALL_LEFT

    def _enter(self, t: TickTensors) -> RunningRows:
        return self.steps.enter(
            self._arrays,
            t.decode_slots,
            all_left=self._all_left,
            first=self._looped.first,
            parts=self._looped.parts,
        )

    def _settle(
        self, rows: RunningRows, says: Tensor | None, tick: Tensor, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        return self.steps.settle(self._arrays, rows, says, tick, full=self.full)

    def _leave(self, t: TickTensors, tick: Tensor, counts: Tensor) -> Results:
        leaving = self.steps.leave(
            self._arrays, t.decode_slots, tick, places=t.num_leave, min_leave=self.min_leave
        )
        return self._emit(leaving, counts, t)

    def _emit(self, leaving: LeavingRows, counts: Tensor, t: TickTensors) -> Results:
        """Coda, head and sampling of these rows, and their slots' next tokens."""
        s, arrays = self.slots, self._arrays
        at = self._coda_rows(leaving, leaving.position, t.coda_tiles, t.num_chunks)
        ctx = Launch(self.services, at, s, num_rows=leaving.count)
        state = self.model.coda(s.read_state.index_select(0, leaving.home), ctx)
        logits = self.model.head(state, ctx)
        sampled, drawn = self._sample(leaving, logits)
        return self._results(self.steps.advance(arrays, leaving, drawn, counts), sampled, logits)
