"""Submits ticks to the device and collects their results, one tick or two in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import ExitPolicy, KVLayout, LoopedModel
from rlt_core.contract.steps import RandomBits
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.pool import DevicePool
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import TickInput, TickOutput
from rlt_core.runtime.checked_model import CheckedModel
from rlt_core.runtime.checks import CheckingEmitter
from rlt_core.runtime.collect import Pending, Results, results_of
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.emit import Emitter
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.fused_ticks import make_fused
from rlt_core.runtime.graphs import TickGraphs, variants
from rlt_core.runtime.operators import build_operators
from rlt_core.runtime.options import OptionSlots
from rlt_core.runtime.philox import random_bits
from rlt_core.runtime.pipeline import PipelineProgram
from rlt_core.runtime.residents import Needs, Residents
from rlt_core.runtime.rope import RopeTables
from rlt_core.runtime.services import Services
from rlt_core.runtime.slot_admission import admit
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.swap import SwapCopies
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import TILE
from rlt_core.runtime.upload import Upload


class Executor:
    """One stage's device side: weights, pool, slots and the tick program."""

    def __init__(
        self, plan: Plan, config: EngineConfig, kv: KVPlan, model: LoopedModel, layout: KVLayout
    ) -> None:
        if kv.hides and Word.HIDDEN_KEYS not in plan.attention.provides:
            reason = "its tables hide keys, but its spec does not need hidden_keys"
            raise PluginError(plan.layout.id, reason)
        self.config, self.kv = config, kv
        checked = CheckedModel(model, plan)
        self.device = torch.device(plan.device)
        self._gpu = torch.cuda.device(self.device).idx if self.device.type == "cuda" else None
        dtype = getattr(torch, plan.dtype)
        self.pool = DevicePool(kv, config.num_pages, self.device, dtype, debug=config.debug)
        policy = _make(plan.policy.factory)
        if "fill" in plan.ops:
            self.pool.filler = load_object(plan.ops["fill"].factory)
        self.slots = _make_slots(plan, config, kv, policy, self.device)
        self.swaps = SwapCopies(self.pool, self.slots, config.swap_pages)
        attention = _make(plan.attention.factory)
        self.services = Services(
            ops=build_operators(plan),
            attention=attention,
            paged=attention if hasattr(attention, "paged") else None,
            pool=self.pool,
            # One position more: a finished slot's row stands one past the end.
            rope=RopeTables(config.max_len + 1, self.device, dtype),
            kv=kv,
            tracks={track.name: track for track in kv.tracks},
            random_bits=_random_bits(plan),
        )
        full, signals = plan.exit_mode == "full", plan.policy.needs & _SIGNALS
        may_exit = Word.VARIABLE_DEPTH in plan.policy.needs
        parts = (checked, self.slots, self.services, policy)
        decider = Decider(*parts, full=full, signals=signals, may_exit=may_exit)
        self.program = self._make_program(plan, checked, decider)
        self.emitter = self.program.emitter
        self._has_coda = plan.shape.has_coda_layers
        self._fused = make_fused(plan, self.program)
        self.inputs = TickInputs(
            config,
            self.device,
            chains=any(option.chains for option in plan.model.options),
            peeks=Word.LOGITS in plan.policy.needs,
            lanes=getattr(attention, "tile_rows", TILE),
            fan=plan.num_lanes or 1,
            guesses=plan.draft_depth > 0,
            # In mode full rows that were read must go on in every tick.
            narrows=plan.strategy.adapts and not full,
            walks=self.services.paged is not None,
        )
        self._upload, self._residents = Upload(self.device), Residents(config.num_slots)
        self._graphs: TickGraphs | None = None
        # Kinds of sampling that capture() captures; benchmarks, which use one, leave out the rest.
        self.sampling: Sequence[Needs] = variants(config.max_logprobs)
        self._in_flight: deque[Pending] = deque()

    def _make_program(self, plan: Plan, model: LoopedModel, decider: Decider) -> TickProgram:
        slots, keep = self.slots, self.config.keep_logits
        tables = DeviceTables(self.kv, self.device)
        rules: dict[str, Any] = {
            "entry": plan.strategy.entry,
            "full": plan.exit_mode == "full",
            "min_leave": self.config.min_leave,
            # Where nobody enters, layers of the prelude would run in vain.
            "counts_entering": plan.shape.has_prelude_layers and bool(self.services.ops.counted),
        }
        parts = (model, slots, self.services, tables, decider)
        if slots.lanes is None:
            return TickProgram(*parts, Emitter(slots, keep_logits=keep), **rules)
        checks = CheckingEmitter(slots, keep_logits=keep, lanes=slots.lanes)
        return PipelineProgram(*parts, checks=checks, draft=plan.draft_depth, **rules)

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return len(self._in_flight)

    def capture(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Capture graphs, for ticks with prompt rows too; progress(done, of) after each of them."""
        with torch.inference_mode(), self._on_device():
            self._graphs = TickGraphs(
                self._run,
                self._change,
                self.slots,
                self.emitter,
                self.config,
                self.inputs,
                has_coda=self._has_coda,
                variants=self.sampling,
            )
            self._graphs.capture(progress)

    def submit(self, tick: TickInput) -> None:
        """Launch a tick; returns without waiting for it. Any thread may call: events, streams and
        kernels go to the device that is current there."""
        with torch.inference_mode(), self._on_device():
            needs = self._residents.update(tick)
            self._apply(tick)
            results = None if self._graphs is None else self._graphs.run(tick, needs)
            if results is None:
                self._apply_pages(tick)
                self.emitter.needs = needs
                results = self._run(self.inputs(tick))
            self._in_flight.append(Pending(tick.tick, results))

    def collect(self) -> TickOutput:
        """The oldest tick's results; waits for them."""
        return self._in_flight.popleft().wait()

    def _on_device(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gpu is None else torch.cuda.device(self._gpu)

    def _run(self, t: TickTensors) -> Results:
        """One tick, in fused steps where there are some for it."""
        tick = self._fused.of(t, self.emitter.needs)
        return results_of(self.program(t)) if tick is None else tick(t)

    def _apply(self, tick: TickInput) -> None:
        """What the host changed, in stream order before the tick's work."""
        for copy in tick.swapped_out:
            self.swaps.out(copy)
        if self.swaps.busy:
            self.swaps.guard(np.concatenate((tick.table_page, tick.freed_pages)))
        if self.config.debug and len(tick.freed_pages):
            self.pool.poison(self._upload(tick.freed_pages))
        if len(tick.cleared):
            self.slots.clear(self._upload(tick.cleared))
            self.swaps.cleared(tick.cleared)
        if tick.admitted is not None:
            admit(self.slots, tick.admitted)
        if tick.masks is not None:
            self.slots.make_masks().put(tick.masks)
        for resumed in tick.resumed:
            self.swaps.back(resumed)
        self.swaps.arrive()

    def _apply_pages(self, tick: TickInput) -> None:
        """Page tables and limits, after that."""
        s = self.slots
        if len(tick.table_at):
            s.tables.view(-1)[self._upload(tick.table_at)] = self._upload(tick.table_page)
        s.page_limit[:-1] = self._upload(tick.page_limit)

    def _change(self, limits: Tensor, at: Tensor, page: Tensor) -> None:
        """The same of tensors: limits int64 [S]; entries and pages int64 [N]."""
        if self._fused.decode is not None:
            self._fused.decode.apply(limits, at, page)
            return
        self.slots.page_limit[:-1] = limits
        self.slots.tables.view(-1)[at] = page.int()


_SIGNALS = frozenset({"gate", "state", "logits"})


def _random_bits(plan: Plan) -> RandomBits:
    """The plan's candidate, or the runtime's own way."""
    if "random_bits" not in plan.ops:
        return random_bits
    drawn: RandomBits = load_object(plan.ops["random_bits"].factory)
    return drawn


def _make(factory: str):  # type: ignore[no-untyped-def]  # whatever the plugin's factory gives
    return load_object(factory)()


def _make_slots(
    plan: Plan, config: EngineConfig, kv: KVPlan, policy: ExitPolicy, device: torch.device
) -> Slots:
    shape = plan.shape
    return Slots(
        config,
        table_rows=kv.table_rows,
        table_width=config.table_width,
        state_width=shape.state_width,
        vocab_size=shape.vocab_size,
        dtype=getattr(torch, plan.dtype),
        device=device,
        full=plan.exit_mode == "full",
        hides=kv.hides,
        policy_state=policy.state(shape.vocab_size, shape.state_width),
        policy_params=plan.policy.params,
        options=_make_options(plan, config, device),
        num_lanes=plan.num_lanes,
    )


def _make_options(plan: Plan, config: EngineConfig, device: torch.device) -> OptionSlots | None:
    if not plan.model.options:
        return None
    return OptionSlots(
        plan.model.options,
        num_slots=config.num_slots,
        max_len=config.max_len,
        widths=plan.shape.table_widths,
        dtype=getattr(torch, plan.dtype),
        device=device,
    )
