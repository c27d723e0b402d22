"""Pages for rows that go on: reserve ahead, and say who is starved when the pool is full."""

from __future__ import annotations

import numpy as np

from rlt_core.kv.pages import HostPages
from rlt_core.runtime.batch import I64
from rlt_core.schedule.slot_table import SlotTable

_NO_SLOTS: I64 = np.zeros(0, np.int64)


# Ticks that a look at all rows is good for while pages are plenty.
AHEAD = 15


class PageReserve:
    """Gives residents the pages that they need for the next tick, the first in rank first.

    While the pool has plenty, rows get pages for AHEAD positions more, so that not every tick
    need look at them: while every slot could grow by as much again.

    due: the tick that must look at all rows again. longest: no row that decodes has pages for more
    positions, so none sees more; it comes down when all rows are looked at.
    """

    def __init__(self, table: SlotTable, pages: HostPages, rows_ahead: int = 0) -> None:
        """rows_ahead: rows of a request that may be in flight before its own position moves."""
        self._table, self._pages, self._rows_ahead = table, pages, rows_ahead
        self._most_growth = len(pages.columns) * pages.plan.table_rows
        self._plenty = self._most_growth * (2 + AHEAD // pages.plan.page_size)
        self.due, self.longest = 0, 1

    def secure(self, tick: int, num_in_flight: int) -> I64:
        """Reserve for `tick`, behind `num_in_flight` others; the slots that cannot go on.

        A row advances at most one position a tick, so at the new tick it stands at most at
        position + num_in_flight, with rows_ahead in line behind it. When the pages do not suffice
        for that, only what is needed at the known position is given. The starved come back first
        in rank first.
        """
        positions, pages = self._table.positions(), self._pages
        for ahead, leaving in ((AHEAD, self._plenty), (0, 0)):
            most = num_in_flight + 1 + self._rows_ahead + ahead
            goal = np.minimum(positions + most, self._table.cap)
            short = (goal > pages.page_limit).nonzero()[0]
            if not len(short) or pages.try_extend(short, goal[short], leaving):
                self.due = tick + ahead + 1
                self._look_at_limits()
                return _NO_SLOTS
        starved = self._secure_now()
        self._look_at_limits()
        return starved

    def has_plenty(self, num_pages: int) -> bool:
        """Whether, after `num_pages` of the free ones, rows may have pages ahead."""
        return self._pages.num_free - num_pages >= self._plenty

    def follow(self, slot: int, position: int, cap: int) -> None:
        """A slot may grow from now on, up to `cap` positions; its row enters at `position` in the
        next tick at first."""
        limit = self._pages.page_limit.item(slot)
        if limit > self.longest:
            self.longest = limit
        if limit < cap and limit <= position + self._rows_ahead + AHEAD:
            self.due = 0

    def leaves_headroom(self, num_pages: int, num_preempted: int = 0) -> bool:
        """Whether, after `num_pages` of the free ones, every resident that may grow can do so
        once; twice, four times and so on for a request that was preempted once, twice and so on.

        So a request loses its slot as many times as its longest neighbour's columns can be halved,
        and not whenever a neighbour grows by a page.
        """
        left, table, pages = self._pages.num_free - num_pages, self._table, self._pages
        most = 1 << min(num_preempted, 20)
        if left >= self._most_growth * most:
            return True
        grows = ((table.need > pages.page_limit) & (table.owner >= 0)).nonzero()[0]
        columns = pages.columns_needed(table.need[grows]) - pages.columns[grows]
        return left >= int((np.minimum(columns, most) * pages.growth(grows)).sum())

    def victim(self) -> int:
        """The slot to give up first: last in priority, then the latest arrival."""
        return int(self._table.ranked(self._table.residents())[-1])

    def _look_at_limits(self) -> None:
        limits = self._pages.page_limit[self._table.decoding()]
        self.longest = limits.item(limits.argmax()) if len(limits) else 1

    def _secure_now(self) -> I64:
        table, pages = self._table, self._pages
        goal = np.minimum(table.positions() + 1, table.cap)
        short = table.ranked((goal > pages.page_limit).nonzero()[0])
        # No later slot takes pages while an earlier one lacks them.
        costs = pages.pages_needed(short, goal[short]).cumsum()
        num = int(np.searchsorted(costs, pages.num_free, side="right"))
        pages.grow(short[:num], goal[short[:num]])
        return short[num:]
