"""Requests get a slot and pages, lose them, end: every change of a request's state."""

from __future__ import annotations

from dataclasses import replace

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import RequestError
from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import I64, EngineConfig
from rlt_core.schedule.admission import Intake
from rlt_core.schedule.forced import Forced, cell_rules, forced_rows
from rlt_core.schedule.options import ModelOptions
from rlt_core.schedule.preemption import PageReserve
from rlt_core.schedule.prompt_cells import Cell, PromptCells
from rlt_core.schedule.record import Record, State
from rlt_core.schedule.request import EngineRequest, TickCounts
from rlt_core.schedule.slot_table import SlotTable
from rlt_core.schedule.waiting import WaitingQueue

DEBUG_SHUFFLE_SEED = 0


class Residency:
    """All live requests of one stage and what they hold.

    prompts: residents whose next cell has not begun. cleared, admitted: slots and records whose
    change the next tick must tell the device. num_withdrawn: how often a request lost its slot
    before its end, so that outputs of ticks in flight may be strays.
    """

    def __init__(self, plan: Plan, config: EngineConfig, kv: KVPlan) -> None:
        self.config, self.kv = config, kv
        self.full = plan.exit_mode == "full"
        self.counts = TickCounts()
        self.table = SlotTable(config.num_slots, config.max_len)
        self.pages = HostPages(
            kv,
            config.num_slots,
            config.table_width,
            config.num_pages,
            shuffle_seed=DEBUG_SHUFFLE_SEED if config.debug else None,
        )
        self.reserve = PageReserve(self.table, self.pages)
        self.cells = PromptCells(config.num_places, plan.shape.loops)
        self.waiting = WaitingQueue()
        self.prompts: list[Record] = []
        self.cleared: list[int] = []
        self.admitted: list[Record] = []
        self.num_withdrawn = 0
        self.records: dict[int, Record] = {}
        self.by_serial: dict[int, Record] = {}
        alone = Word.LOGITS in plan.policy.needs and plan.shape.has_coda_layers
        self._rules = [cell_rules(tables, alone=alone) for tables in kv.tables]
        # Where positions read the state of the one before, known ones are replayed one by one.
        self._chained = [replace(rules, serial=True) for rules in self._rules]
        self.options = ModelOptions(plan, config.max_len)
        self._intake = Intake(plan, config, kv, self.options)
        self._serial = 0

    def add(self, request: EngineRequest, tick: int) -> None:
        """Queue a request; RequestError when it can never run."""
        if request.request_id in self.records:
            raise RequestError("request_id", f"{request.request_id} is in use")
        record = self._intake.record(request, self._serial)
        record.moved = tick
        record.forced = self._forced(record)
        self._serial += 1
        self.records[request.request_id] = record
        self.by_serial[record.serial] = record
        self.waiting.push(record)

    def fits(self, record: Record) -> bool:
        """Whether its prompt has pages now, and residents could still grow afterwards."""
        columns = -(-self._cover(record) // self.config.page_size)
        pages = columns * (record.pages_kept if self._kept_only(record) else record.pages_prompt)
        return self.reserve.leaves_headroom(pages)

    def place(self, record: Record, tick: int) -> None:
        """Give a waiting request a slot and the pages of its prompt (`fits` was true)."""
        counts, request = self.counts, record.request
        counts.max_queue_ticks = max(counts.max_queue_ticks, tick - record.moved)
        counts.slots_reused += self.table.take(record)
        if record.forced is None:
            record.forced = self._forced(record)
        record.next_start = 0
        self.pages.admit(record.slot, request.loops)
        if self._kept_only(record):
            self._drop_planes(record)
        covered = self._cover(record)
        # Where planes are dropped after the prompt, the rest costs less then.
        self.reserve.admit(record.slot, covered, covered if self._drops(record) else record.need)
        self.table.touch(record.slot, tick)
        self.prompts.append(record)
        self.admitted.append(record)

    def cell_ended(self, cell: Cell) -> bool:
        """A cell's last loop is in the tick being built; True when its request has no more."""
        record = cell.record
        forced = record.forced
        assert forced is not None, record
        record.next_start = cell.end
        if forced.rules.drops and cell.end == forced.border:
            self._drop_planes(record)
            self.table.cap[record.slot] = len(forced)
            self.reserve.follow(record.slot, len(forced))
        if cell.end < len(forced):
            self.counts.split_prompts += cell.start == 0
            self.prompts.append(record)
            return False
        record.forced = None
        if record.request.kind == "generate":
            self.table.begin_decode(record, position=cell.end)
            self.reserve.follow(record.slot, cell.end)
        return True

    def preempt(self, slot: int, not_before: int) -> None:
        """Take slot and pages back; the request waits, and is recomputed exactly."""
        record = self.table.records[slot]
        assert record is not None, slot
        self.table.save(record)
        self._retire(record)
        self.num_withdrawn += 1
        record.state, record.not_before = State.PREEMPTED, not_before
        self.waiting.push(record)
        self.counts.preemptions += 1

    def end(self, record: Record) -> None:
        """The request is done: finished, failed or aborted."""
        if record.resident:
            self._retire(record)
        else:
            self.waiting.withdraw()
        if record.tables:
            self.options.tables.release(record.tables)
        record.state = State.GONE
        del self.records[record.request.request_id], self.by_serial[record.serial]

    def withdraw(self, record: Record) -> None:
        """End a request from outside: an abort."""
        self.num_withdrawn += record.resident
        self.end(record)

    def end_slots(self, slots: I64) -> None:
        """The requests in these slots have finished; their outputs need not be kept."""
        for slot in slots.tolist():
            record = self.table.records[slot]
            assert record is not None, slot
            self.end(record)

    def _forced(self, record: Record) -> Forced:
        rules = self._chained if record.chains else self._rules
        return forced_rows(
            record.request,
            rules[record.request.loops - 1],
            full=self.full,
            tokens=record.tokens,
            depths=record.depths,
            num_scored=record.num_scored,
        )

    def _retire(self, record: Record) -> None:
        slot = record.slot
        if record.state is State.PROMPT:
            self.cells.drop(record)
            self.prompts = [other for other in self.prompts if other is not record]
        if record in self.admitted:
            self.admitted.remove(record)
        self.table.release(record)
        self.pages.free(slot)
        self.cleared.append(slot)
        record.forced = None

    def _drop_planes(self, record: Record) -> None:
        self.pages.drop_planes(record.slot)
        self.table.page_rows[record.slot] = record.pages_kept

    def _drops(self, record: Record) -> bool:
        return self._rules[record.request.loops - 1].drops

    def _kept_only(self, record: Record) -> bool:
        """A text scored without a prompt: no position of it needs the prompt's planes."""
        request = record.request
        return request.kind == "score" and request.prompt_len == 0 and self._drops(record)

    def _cover(self, record: Record) -> int:
        """Positions that get pages at admission: all forced ones and the next input's.

        Where planes are dropped after the prompt, the prompt's alone: the rest costs less then.
        """
        request = record.request
        score = request.kind == "score"
        border = request.prompt_len if score else len(request.prompt)
        if self._drops(record) and 0 < border:
            return min(border, record.need)
        return min(border + max(len(record.tokens), 1), record.need) if not score else record.need
