"""Selects the work of each tick and applies its results one tick late.

The journey of a request here: `add` checks and queues it (admission); `next_tick` gives it a slot
and pages (residency), runs its prompt in cells (prompt_cells), then lists its slot in every tick;
`apply` hands out what came of a tick (events) and ends requests. A pool that is full takes slots
back (preemption). No step here looks at decode rows one by one, or knows their depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import cast

import numpy as np

from rlt_core.contract.protocols import PromptMode, Strategy, StrategyPlan
from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import CHUNK_KEYS, KVPlan
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import I32, I64, NO_ROWS, PromptRows, TickInput, TickOutput
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.cell_starter import CellStarter
from rlt_core.schedule.engine_stats import engine_stats
from rlt_core.schedule.events import Collector
from rlt_core.schedule.flight import Flight
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest, Events, TickCounts
from rlt_core.schedule.residency import Residency
from rlt_core.schedule.slot_params import ParamBuilder
from rlt_core.schedule.stats import EngineStats
from rlt_core.schedule.views import Views

_NO_SLOTS: I64 = np.zeros(0, np.int64)


class Scheduler:
    """The host half of one stage: requests in, ticks out; results in, events out."""

    def __init__(
        self, plan: Plan, config: EngineConfig, kv: KVPlan, strategy: Strategy | None = None
    ) -> None:
        """strategy: None takes the plan's."""
        self._config = config
        self._strategy = strategy or cast(Strategy, load_object(plan.strategy.factory)())
        self._residency = Residency(plan, config, kv)
        self._collector = Collector(self._residency)
        self._params = ParamBuilder(plan.policy.params, config.max_len, self._residency.options)
        self._flights: deque[Flight] = deque()
        self._all_slots = np.arange(config.num_slots)
        self._tick = 0
        self._views = Views(plan, config, kv, self._residency)
        self._sleeps = False  # nothing can run until a mask, a request or an abort comes
        mode = cast(PromptMode, load_object(plan.prompts.factory)())
        self._starter = CellStarter(self._residency, mode)

    @property
    def counts(self) -> TickCounts:
        """What the run contained so far."""
        return self._residency.all_counts()

    @property
    def records(self) -> Mapping[int, Record]:
        """The live requests by id."""
        return self._residency.records

    @property
    def pages(self) -> HostPages:
        """The pool's book-keeping, for reports and checks; only the scheduler changes it."""
        return self._residency.pages

    def stats(self) -> EngineStats:
        """Gauges and counters; row_loops are those of prompt rows alone."""
        return engine_stats(self._residency)

    @property
    def has_work(self) -> bool:
        """Whether a request is live, a tick in flight or an ending untold; not while all that is
        live waits for masks."""
        live = bool(self._residency.records) and not self._sleeps
        return live or bool(self._flights) or self._collector.has_endings

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError when it can never run; the others go on."""
        self._residency.add(request, self._tick)
        self._sleeps = False

    def abort(self, request_id: int) -> None:
        """End a request now, in whatever state; unknown and finished ones are ignored.

        Its last event has finish ABORT; outputs of ticks in flight are dropped.
        """
        record = self._residency.records.get(request_id)
        if record is not None:
            self._collector.abort(record)
            self._sleeps = False

    def put_masks(self, request_id: I64, index: I64, words: I32) -> None:
        """Masks that clients sent (stage.messages.Masks)."""
        self._sleeps, residency = False, self._residency
        found = residency.masks.put(residency.records, request_id, index, words)
        for record, reason in found:
            self._collector.fail(record, reason)

    def preempt(self, request_id: int) -> None:
        """Take a request's slot and pages back; it waits, is recomputed and loses nothing.

        The scheduler does this itself when the pool is full. Requests without a slot, and unknown
        ones, are left as they are.
        """
        record = self._residency.records.get(request_id)
        if record is not None and record.resident:
            self._residency.preempt(record.slot, not_before=self._tick - 1)

    def next_tick(self) -> TickInput | None:
        """The next tick to submit; None when nothing can run before a result is applied."""
        if len(self._flights) >= self._config.ticks_in_flight:
            return None
        starved = self._tick >= self._residency.reserve.due and self._secure_pages()
        plan = self._strategy.plan(self._views.at(self._tick))
        if plan.num_admissions and not starved:
            self._admit(plan.num_admissions)
        if self._residency.prompts:
            self._starter.start(plan.prompt_rows, self._tick)
        return self._build(plan)

    def apply(self, out: TickOutput) -> Events:
        """Apply the results of the oldest tick in flight; what its clients are to be told."""
        flight, self._sleeps = self._flights.popleft(), False
        assert flight.tick == out.tick, (flight.tick, out.tick)
        return self._collector.apply(out, flight)

    def flush(self) -> Events:
        """What is to be told while nothing runs: aborts of waiting requests."""
        return self._collector.flush(self._tick)

    def _secure_pages(self) -> bool:
        """Pages for rows that go on, taken from the last in rank if need be; True when some
        row must park: the last in rank itself."""
        residency, reserve = self._residency, self._residency.reserve
        while len(starved := reserve.secure(self._tick, len(self._flights))):
            victim = reserve.victim()
            if victim == starved[0]:
                return True
            residency.preempt(victim, not_before=self._tick - 1)
        return False

    def _admit(self, most: int) -> None:
        residency = self._residency
        oldest_in_flight = self._flights[0].tick if self._flights else self._tick
        for _ in range(most):
            record = residency.waiting.head() if residency.table.free else None
            # A preempted request's last outputs may still be in flight.
            if record is None or record.not_before >= oldest_in_flight:
                return
            if not residency.place(record, self._tick):
                return
            residency.waiting.pop()

    def _build(self, plan: StrategyPlan) -> TickInput | None:
        residency, table = self._residency, self._residency.table
        decode = every = table.decoding()
        if len(decode) > plan.decode_rows:
            decode = self._next_in_turn(decode, plan.decode_rows)
        cells = residency.cells.running
        if not cells:
            self._sleeps = len(decode) > 0 and residency.masks.all_wait(every, self._tick)
            if not len(decode) or self._sleeps:
                return None
        pages, number = residency.pages, self._tick
        # Before the planes of prompts that end here are dropped: this tick still reads them.
        table_at, table_page = pages.take_changes()
        tick = TickInput(
            tick=number,
            decode_slots=decode,
            page_limit=pages.page_limit.copy(),
            admitted=self._params.build(residency.admitted) if residency.admitted else None,
            cleared=self._slots(residency.cleared) if residency.cleared else _NO_SLOTS,
            table_at=table_at,
            table_page=table_page,
            freed_pages=pages.take_freed(),
            prompt=residency.cells.rows(number) if cells else NO_ROWS,
            num_chunks=-(-max(residency.reserve.longest, residency.cells.longest) // CHUNK_KEYS),
            least_acceptance=int(1000 * plan.least_acceptance),
        )
        if residency.masks.new:
            tick.masks = residency.masks.take_new()
        if residency.swapping.out or residency.swapping.back:
            tick.swapped_out, tick.resumed = residency.swapping.take()
        flight = Flight(tick=number, owner=table.owner)
        residency.cleared, residency.admitted = [], []
        residency.counts.ticks += 1
        if cells:
            residency.counts.prompt_with_decode += len(decode) > 0
            self._end_cells(tick.prompt, flight)
        self._flights.append(flight)
        self._tick += 1
        return tick

    def _slots(self, numbers: list[int]) -> I64:
        """As an array; of one slot, which is usual, a part of one that is there."""
        if len(numbers) == 1:
            return self._all_slots[numbers[0] : numbers[0] + 1]
        return np.array(numbers, np.int64)

    def _end_cells(self, rows: PromptRows, flight: Flight) -> None:
        """Follow the cells that end in this tick: what comes back of them, what is next."""
        residency, tick = self._residency, self._tick
        has_targets = False
        for cell in residency.cells.finish(tick):
            num_rows = cell.end - cell.start
            if cell.forced.target is not None:
                has_targets = True
            if residency.cell_ended(cell, tick):
                if cell.record.request.kind == "score":
                    flight.scored.append(cell.record)
                elif cell.forced.emits:
                    flight.num_firsts += 1
                    num_rows -= 1  # the row that emits is counted with the outputs
            residency.cell_loops[tick - cell.first] += num_rows
        if has_targets:
            scored = (rows.last & (rows.target >= 0)).nonzero()[0]
            if len(scored):
                flight.score_slot, flight.score_position = rows.slot[scored], rows.position[scored]

    def _next_in_turn(self, slots: I64, most: int) -> I64:
        """Those that advanced longest ago, so that every row gets its turn."""
        oldest = np.argsort(self._residency.table.moved(slots), kind="stable")[:most]
        return np.sort(slots[oldest])
