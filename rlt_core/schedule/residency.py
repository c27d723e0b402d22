"""Requests get a slot and pages, lose them, end: every change of a request's state."""

from __future__ import annotations

from dataclasses import replace

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import RequestError
from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.prefix import num_idle
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import TRUST
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.admission import Intake
from rlt_core.schedule.ageing import aged_priority
from rlt_core.schedule.forced import Forced, cell_rules, forced_rows
from rlt_core.schedule.masks import MaskBook
from rlt_core.schedule.options import ModelOptions
from rlt_core.schedule.preemption import AHEAD, PageReserve
from rlt_core.schedule.prefix import Prefixes
from rlt_core.schedule.prompt_cells import Cell, PromptCells
from rlt_core.schedule.record import GONE, PREEMPTED, PROMPT, WAITING, Record
from rlt_core.schedule.request import EngineRequest, TickCounts
from rlt_core.schedule.sharing import Sharing
from rlt_core.schedule.slot_table import SlotTable
from rlt_core.schedule.stats import QueueTimes
from rlt_core.schedule.swapping import Swapping
from rlt_core.schedule.trust import Trust
from rlt_core.schedule.waiting import WaitingQueue

DEBUG_SHUFFLE_SEED = 0


class Residency:
    """All live requests of one stage and what they hold.

    prompts: residents whose next cell may begin when the prompt mode says so. cleared, admitted:
    slots and records whose change the next tick must tell the device.
    """

    def __init__(self, plan: Plan, config: EngineConfig, kv: KVPlan) -> None:
        self.config, self.kv = config, kv
        self.full = plan.exit_mode == "full"
        self.overlaps = plan.prompts.overlaps
        self.counts = TickCounts()
        self.table = SlotTable(config.num_slots, config.max_len, self.counts)
        sizes = (config.num_slots, config.table_width, config.num_pages)
        seed = DEBUG_SHUFFLE_SEED if config.debug else None
        self.pages = HostPages(kv, *sizes, shuffle_seed=seed)
        self.reserve = PageReserve(self.table, self.pages, max(0, plan.num_lanes - 1))
        self.masks = MaskBook(self.table, plan.shape.vocab_size, config.max_depth)
        self.swapping = Swapping(
            self.pages, config.swap_pages, config.ticks_in_flight, trailing=plan.num_trailing
        )
        self.cells = PromptCells(config.num_places, config.max_len)
        self.waiting = WaitingQueue()
        prefixes = Prefixes(plan, kv, self.pages, on=config.prefix_cache)
        self.sharing = Sharing(prefixes, self.table, self.pages, self.counts, self.waiting.push)
        self.trust, self._guesses = Trust(config.num_slots), plan.num_lanes > 1
        self.prompts: list[Record] = []
        self.cleared: list[int] = []
        self.admitted: list[Record] = []
        self.records: dict[int, Record] = {}
        self.by_serial: dict[int, Record] = {}
        alone = Word.LOGITS in plan.policy.needs and plan.shape.has_coda_layers
        self._rules = [cell_rules(tables, alone=alone) for tables in kv.tables]
        # Where positions read the state of the one before, known ones are replayed one by one.
        self._chained = [replace(rules, serial=True) for rules in self._rules]
        self.options = ModelOptions(plan, config.max_len)
        self._intake = Intake(plan, config, kv, self.options)
        self._serial = 0
        self.queue_times = QueueTimes()
        # Rows of prompt cells by the loops that they took, less 1.
        self.cell_loops = [0] * plan.max_depth

    def all_counts(self) -> TickCounts:
        """`counts`, with those that follow from others and are not kept in every tick."""
        counts, table = self.counts, self.table
        table.settle()
        counts.slots_reused = max(table.num_taken - self.config.num_slots, 0)
        counts.cache_queries = table.num_taken if self.config.prefix_cache else 0
        counts.cache_evictions = self.pages.cache.evictions
        return counts

    def add(self, request: EngineRequest, tick: int) -> None:
        """Queue a request; RequestError when it can never run."""
        if request.request_id in self.records:
            raise RequestError("request_id", f"{request.request_id} is in use")
        self.masks.check(request)
        record = self._intake.record(request, self._serial)
        record.moved, record.mask = tick, request.mask
        record.rank = (aged_priority(request.priority, tick), record.serial)
        record.forced = self._forced(record)
        self._serial += 1
        self.records[request.request_id] = record
        self.by_serial[record.serial] = record
        self.waiting.push(record)

    def place(self, record: Record, tick: int) -> bool:
        """Give the request at the head of the queue a slot and the pages of its prompt, or let it
        stand aside while another writes what it begins with; False, and nothing happens, where
        there are no pages or residents could not grow afterwards."""
        forced, first = record.forced, record.state is WAITING
        if forced is None:
            forced = record.forced = self._forced(record)
        swapped = record.swapped is not None
        drops = forced.rules.drops
        chain = self.sharing.find(record, forced)
        if chain is None:
            return True
        # Without a prompt no position needs the prompt's planes.
        has_prompt = not drops or (forced.border > 0 and not swapped)
        rows = record.pages_prompt if has_prompt else record.pages_kept
        positions = record.cover(forced)
        # Where planes are dropped after the prompt, what comes then costs less then.
        ahead = positions if drops else positions + AHEAD
        if ahead > record.need:
            ahead = record.need
        size = self.config.page_size
        # Cached pages that nobody uses count as free, until now.
        idle = num_idle(chain) - len(chain) * rows if chain else 0
        if self.reserve.has_plenty(-(-ahead // size) * rows + idle):
            positions = ahead
        elif not self.reserve.leaves_headroom(
            -(-positions // size) * rows + idle, record.num_preempted
        ):
            return False
        if record.state is WAITING:
            self.queue_times.ended(record.arrived)
        self.table.take(record)
        if record.mask is not None:
            self.masks.place(record)
        loops = record.request.loops
        self.pages.admit(record.slot, loops, positions, has_prompt=has_prompt, chain=chain)
        if (ticks := tick - record.moved) > self.counts.max_queue_ticks:
            self.counts.max_queue_ticks = ticks
        record.moved, record.next_start = tick, len(chain) * size
        if record.keys:
            self.sharing.placed(record, forced, first=first)
        self.admitted.append(record)
        if self._guesses:
            record.params[1][0, TRUST] = self.trust.admit(record.slot)
        if swapped:
            self._bring_back(record, len(chain))
        else:
            self.prompts.append(record)
        return True

    @property
    def num_prompts(self) -> int:
        """Residents with known positions that have not run."""
        if not self.overlaps:
            return len(self.prompts) + len(self.cells.running)
        return len({id(r) for r in self.prompts} | {id(c.record) for c in self.cells.running})

    def cell_ended(self, cell: Cell, tick: int) -> bool:
        """A cell's last loop is in `tick`; True when its request has no more."""
        record, forced, end, length = cell.record, cell.forced, cell.end, len(cell.forced.tokens)
        record.moved = tick
        if record.newest is cell:
            record.newest = None
        if record.keys:
            self.sharing.cell_ended(record, forced, end)
        if forced.rules.drops and end == forced.border:
            self.pages.drop_planes(record.slot)
            self.table.cap[record.slot] = length
            self.reserve.follow(record.slot, length, length)
        if end < length:
            self.counts.split_prompts += cell.start == 0
            if not self.overlaps:
                self.prompts.append(record)
            return False
        record.forced = None
        if record.request.kind == "generate":
            self.table.begin_decode(record, position=end)
            self.reserve.follow(record.slot, end, record.need)
        return True

    def preempt(self, slot: int, not_before: int) -> None:
        """Take slot and pages back; the request waits, and is recomputed exactly."""
        record = self.table.records[slot]
        assert record is not None, slot
        self.table.save(record)
        self.table.keep_owners()
        if self.swapping.leave(record):
            self.counts.swaps += 1
        self._retire(record, ended=False)
        record.state, record.not_before = PREEMPTED, not_before
        self.waiting.push(record)
        record.num_preempted += 1
        self.counts.preemptions += 1

    def end(self, record: Record) -> None:
        """The request is done: finished, failed or aborted."""
        if record.slot >= 0:
            self._retire(record, ended=True)
        elif record.aside is not None:
            self.sharing.withdraw(record)
        else:
            self.waiting.withdraw()
        if record.swapped is not None:
            self.swapping.forget(record)
        if record.tables:
            self.options.tables.release(record.tables)
        record.state = GONE
        del self.records[record.request.request_id], self.by_serial[record.serial]

    def withdraw(self, record: Record) -> None:
        """End a request from outside: an abort."""
        if record.resident:
            self.table.keep_owners()
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

    def _bring_back(self, record: Record, start: int) -> None:
        """The request decodes at once: its pages come from the host."""
        position = self.swapping.resume(record, start)
        record.forced = None
        self.table.begin_decode(record, position)
        self.reserve.follow(record.slot, position, record.need)

    def _retire(self, record: Record, *, ended: bool) -> None:
        slot = record.slot
        self.sharing.leave(record, ended=ended)
        if record.state is PROMPT:
            self.cells.drop(record)
            self.prompts = [other for other in self.prompts if other is not record]
        if self.admitted and record in self.admitted:
            self.admitted.remove(record)
        self.table.release(record)
        if record.mask is not None:
            self.masks.leave(slot)
        self.pages.free(slot, ended=ended)
        self.cleared.append(slot)
        if self._guesses:
            self.trust.value[slot] = 0
        record.forced = record.keys = None
