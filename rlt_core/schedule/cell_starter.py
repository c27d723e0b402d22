"""Which prompts begin their next cell in a tick."""

from __future__ import annotations

from rlt_core.contract.protocols import PromptMode, PromptView
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.record import Record
from rlt_core.schedule.residency import Residency


class CellStarter:
    """Hands free places to prompts, as the prompt mode cuts them."""

    def __init__(self, residency: Residency, mode: PromptMode) -> None:
        self._residency, self._mode = residency, mode
        config = residency.config
        # A chunk must fit the places, or it would wait for ever.
        self._chunk_size = min(config.chunk_size, config.num_places)

    def start(self, budget: int, tick: int) -> None:
        """Begin cells for prompts that have none: first in priority, then longest unserved."""
        residency, cells = self._residency, self._residency.cells
        if not residency.prompts:
            return
        waiting: list[Record] = []
        order = residency.prompts
        if len(order) > 1:
            order = sorted(order, key=lambda r: (r.request.priority, r.moved, r.serial))
        free = min(cells.num_free, budget - (cells.num_places - cells.num_free))
        for record in order:
            forced = record.forced
            assert forced is not None, record
            length = self._cell_len(record, forced, free)
            if not length:
                waiting.append(record)
                # Nobody takes the places that an earlier one waits for.
                free = 0
            elif length > 0:
                cells.start(record, forced, length, tick)
                residency.counts.waited(tick - record.moved)
                record.moved = tick
                free -= length
            else:
                waiting.append(record)
        residency.prompts = waiting

    def _cell_len(self, record: Record, forced: Forced, free: int) -> int:
        """Rows of its next cell; 0 when places are lacking, -1 when pages are."""
        if free <= 0:
            return 0
        start = record.next_start
        view = PromptView(
            length=forced.segment_end(start),
            next_start=start,
            running_len=0,
            running_depth=0,
            loops=forced.loops,
            by_position=forced.one_by_one(start),
        )
        length = self._mode.chunk_len(view, free, self._chunk_size)
        has_pages = start + length <= self._residency.pages.page_limit[record.slot]
        return length if has_pages else -1
