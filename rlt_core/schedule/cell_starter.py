"""Which prompts begin their next cell in a tick."""

from __future__ import annotations

from rlt_core.contract.protocols import PromptMode, PromptView
from rlt_core.schedule.ageing import AGE_TICKS
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.prompt_cells import Cell
from rlt_core.schedule.record import Record
from rlt_core.schedule.residency import Residency

_NO_PLACES, _NOT_YET = 0, -1


class CellStarter:
    """Hands free places to prompts, as the prompt mode cuts them.

    A cell at depth d needs all earlier positions at depth d. Every cell takes a loop a tick, so one
    that begins behind another of its request stays behind it; what else must hold is checked here,
    whatever the mode says.
    """

    def __init__(self, residency: Residency, mode: PromptMode) -> None:
        self._residency, self._mode = residency, mode
        config = residency.config
        # A chunk must fit the places, or it would wait for ever.
        self._chunk_size = min(config.chunk_size, config.num_places)

    def start(self, budget: int, tick: int) -> None:
        """Begin cells for prompts: first those that were passed by for AGE_TICKS, then by
        priority, then those with the least left: so one prompt ends before another begins, and a
        short one does not wait for a long one."""
        residency, cells = self._residency, self._residency.cells
        counts, waiting = residency.counts, list[Record]()
        order = residency.prompts
        if len(order) > 1:
            starved = tick - AGE_TICKS
            order = sorted(
                order, key=lambda r: (r.moved > starved, r.request.priority, _num_left(r), r.serial)
            )
        free = min(cells.num_free, budget - (cells.num_places - cells.num_free))
        for record in order:
            forced = record.forced
            assert forced is not None, record
            length = self._cell_len(record, forced, free, tick)
            if length > 0:
                cells.start(record, forced, length, tick)
                if (ticks := tick - record.moved) > counts.max_wait_ticks:
                    counts.max_wait_ticks = ticks
                record.moved = tick
                free -= length
                if residency.overlaps and record.next_start < len(forced):
                    waiting.append(record)
                    free -= self._num_claimed(record, forced, tick) if free else 0
                continue
            waiting.append(record)
            if length == _NO_PLACES:
                # Nobody takes the places that an earlier one waits for.
                free = 0
        residency.prompts = waiting

    def _num_claimed(self, record: Record, forced: Forced, tick: int) -> int:
        """Places that its next cells need before those of its running ones are free again. Given
        to a later prompt they would be gone for all its loops, and both would be slow."""
        newest = record.newest
        assert newest is not None
        if _waits_for_all(forced, newest, record.next_start):
            return 0
        wanted = (newest.end - newest.start) * (newest.last - tick)
        running = self._residency.cells.running
        own = sum(c.end - c.start for c in running if c.record is record and c is not newest)
        return max(min(wanted, _num_left(record)) - own, 0)

    def _cell_len(self, record: Record, forced: Forced, free: int, tick: int) -> int:
        """Rows of its next cell, or why there is none in this tick."""
        start, newest = record.next_start, record.newest
        if newest is not None and _waits_for_all(forced, newest, start):
            return _NOT_YET
        if free <= 0:
            return _NO_PLACES
        whole = forced.exit_at is None  # nothing but prompt positions of full depth
        view = PromptView(
            length=len(forced.tokens) if whole else forced.segment_end(start),
            next_start=start,
            running_len=0 if newest is None else newest.end - newest.start,
            running_depth=0 if newest is None else tick - newest.first,
            loops=forced.loops,
            by_position=forced.rules.by_position if whole else forced.one_by_one(start),
        )
        length = self._mode.chunk_len(view, free, self._chunk_size)
        if newest is not None and (not length or not _follows(forced, newest, length, tick)):
            return _NOT_YET
        has_pages = start + length <= self._residency.pages.page_limit[record.slot]
        return length if has_pages else _NOT_YET


def _num_left(record: Record) -> int:
    assert record.forced is not None
    return len(record.forced) - record.next_start


def _waits_for_all(forced: Forced, newest: Cell, start: int) -> bool:
    """Whether the cell at `start` needs every earlier position to be done: where positions go one
    by one, and where the prompt's planes are dropped before it."""
    if forced.one_by_one(start) or forced.one_by_one(newest.start):
        return True
    return forced.rules.drops and newest.start < forced.border <= start


def _follows(forced: Forced, newest: Cell, length: int, tick: int) -> bool:
    """Whether a cell that begins now, a tick or more after the newest one, runs its coda after it:
    replayed cells end with their deepest row, which may be early."""
    end = newest.end + length
    return newest.last < tick + forced.num_loops(newest.end, end) - 1
