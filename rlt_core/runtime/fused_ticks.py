"""The fused ticks of a stage, as far as a plugin has steps for them."""

from __future__ import annotations

from dataclasses import dataclass

from rlt_core.contract.mixed_steps import MixedSteps
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.decode_tick import DecodeTick
from rlt_core.runtime.fused_tick import FusedTick
from rlt_core.runtime.lane_tick import LaneTick
from rlt_core.runtime.mixed_tick import MixedTick
from rlt_core.runtime.pipeline import PipelineProgram
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import TickTensors


@dataclass(slots=True)
class FusedTicks:
    """decode: ticks of decode rows alone; mixed: ticks with the rows of plain prompts. None: the
    TickProgram's are all there is."""

    decode: FusedTick | None = None
    mixed: FusedTick | None = None

    def of(self, t: TickTensors, needs: Needs) -> FusedTick | None:
        """The one that runs this tick; None: none does."""
        if needs.masks and t.leaves:
            return None  # rows may have to wait for a mask before the head
        if t.has_prompt:
            return self.mixed if t.plain else None
        return self.decode


def make_fused(plan: Plan, program: TickProgram) -> FusedTicks:
    """The fused forms of the plan's program."""
    ops = plan.ops
    if isinstance(program, PipelineProgram):
        if "lane_steps" not in ops:
            return FusedTicks()
        steps = load_object(ops["lane_steps"].factory)()
        return FusedTicks(LaneTick(program, steps, has_coda=plan.shape.has_coda_layers))
    if "steps" not in ops:
        return FusedTicks()
    steps = load_object(ops["steps"].factory)()
    mixed = MixedTick(program, steps) if isinstance(steps, MixedSteps) else None
    return FusedTicks(DecodeTick(program, steps), mixed)
