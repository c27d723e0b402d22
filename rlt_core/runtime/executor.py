"""Submits ticks to the device and collects their results, one tick or two in flight."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import ExitPolicy, KVLayout, LoopedModel
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.pool import DevicePool
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import (
    EXIT_AT,
    FIRST_TICK,
    I64,
    KNOWN_NEXT,
    PLACE,
    POSITION,
    RULE,
    SLOT,
    TARGET,
    TOKEN,
    EngineConfig,
    PromptRows,
    TickInput,
    TickOutput,
)
from rlt_core.runtime.checked_model import CheckedModel
from rlt_core.runtime.collect import to_host
from rlt_core.runtime.context import Services
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.emit import Emitted, Emitter
from rlt_core.runtime.operators import build_operators
from rlt_core.runtime.options import OptionSlots
from rlt_core.runtime.residents import Residents
from rlt_core.runtime.rope import RopeTables
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import make_tiles, single_tiles


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
        dtype = getattr(torch, plan.dtype)
        self.pool = DevicePool(kv, config.num_pages, self.device, dtype, debug=config.debug)
        policy = _make(plan.policy.factory)
        self.slots = _make_slots(plan, config, kv, policy, self.device)
        self.emitter = Emitter(self.slots, keep_logits=config.keep_logits)
        self.services = Services(
            ops=build_operators(plan),
            attention=_make(plan.attention.factory),
            pool=self.pool,
            # One position more: a finished slot's row stands one past the end.
            rope=RopeTables(config.max_len + 1, self.device, dtype),
            kv=kv,
            tracks={track.name: track for track in kv.tracks},
        )
        full, signals = plan.exit_mode == "full", plan.policy.needs & _SIGNALS
        decider = Decider(checked, self.slots, self.services, policy, full=full, signals=signals)
        self.program = TickProgram(
            checked,
            self.slots,
            self.services,
            DeviceTables(kv, self.device),
            decider,
            self.emitter,
            entry=plan.strategy.entry,
            full=full,
            min_leave=config.min_leave,
        )
        self._peeks = Word.LOGITS in plan.policy.needs
        self._residents = Residents(config.num_slots)
        self._chains = any(option.chains for option in plan.model.options)
        self._in_flight: deque[tuple[int, Emitted]] = deque()

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return len(self._in_flight)

    def submit(self, tick: TickInput) -> None:
        """Launch a tick; returns without waiting for it."""
        with torch.inference_mode():
            self._apply(tick)
            self._in_flight.append((tick.tick, self.program(self._tensors(tick))))

    def collect(self) -> TickOutput:
        """The oldest tick's results; waits for them."""
        number, out = self._in_flight.popleft()
        return to_host(number, out)

    def _apply(self, tick: TickInput) -> None:
        """What the host changed, in stream order before the tick's work."""
        s = self.slots
        if self.config.debug and len(tick.freed_pages):
            self.pool.poison(self._tensor(tick.freed_pages))
        if len(tick.cleared):
            s.clear(self._tensor(tick.cleared))
        if tick.admitted is not None:
            s.admit(tick.admitted)
        if len(tick.table_at):
            s.tables.view(-1)[self._tensor(tick.table_at)] = self._tensor(tick.table_page)
        s.page_limit[:-1] = self._tensor(tick.page_limit)
        self.emitter.needs = self._residents.update(tick)

    def _tensors(self, tick: TickInput) -> TickTensors:
        prompt = tick.prompt
        # One sentinel row keeps every launch non-empty, also in a tick of prompts alone.
        decode = tick.decode_slots if len(tick.decode_slots) else np.array([self.slots.sentinel])
        num_decode = len(decode)
        finish = np.flatnonzero(prompt.last)
        known = prompt.known_next[finish] >= 0
        emits = prompt.emit[finish] & ~known
        num_leave = min(num_decode, self.config.leave_places or num_decode)
        columns = self._tensor(prompt.columns)
        asking = np.flatnonzero(prompt.exit_at == 0) + num_decode
        asks = np.concatenate((np.arange(num_decode), asking))
        return TickTensors(
            tick=tick.tick,
            decode_slots=self._tensor(decode),
            place=columns[PLACE],
            slot=columns[SLOT],
            token=columns[TOKEN],
            position=columns[POSITION],
            depth=tick.tick + 1 - columns[FIRST_TICK],
            exit_at=columns[EXIT_AT],
            rule=columns[RULE],
            known_next=columns[KNOWN_NEXT],
            target=columns[TARGET],
            finish=self._tensor(finish),
            emit=self._tensor(np.flatnonzero(emits)),
            resume=self._tensor(finish[known]),
            score=self._tensor(np.flatnonzero(prompt.target[finish] >= 0)),
            tail=self._tensor(_tails(prompt)) if self._chains else None,
            asks=self._tensor(asks),
            tiles=make_tiles(num_decode, prompt.cell_start, self.device),
            coda_tiles=make_tiles(num_leave, _finishing_cells(prompt), self.device),
            ask_tiles=single_tiles(len(asks), self.device) if self._peeks else None,
            num_chunks=tick.num_chunks,
            num_leave=num_leave,
            has_prompt=len(prompt) > 0,
        )

    def _tensor(self, array: object) -> Tensor:
        return torch.as_tensor(array, device=self.device)


_SIGNALS = frozenset({"gate", "state", "logits"})


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


def _tails(prompt: PromptRows) -> I64:
    """The last row of each cell that ends in this tick."""
    rows = prompt.cell_start[1:] - 1
    return rows[prompt.last[rows]] if len(rows) else rows


def _finishing_cells(prompt: PromptRows) -> I64:
    """Offsets of the cells that end in this tick, among their rows only."""
    lengths = np.diff(prompt.cell_start)
    ends = prompt.last[prompt.cell_start[:-1]] if len(lengths) else np.zeros(0, bool)
    return np.concatenate(([0], np.cumsum(lengths[ends]))).astype(np.int64)
