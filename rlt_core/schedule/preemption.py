"""Pages for rows that go on: reserve ahead, and say who is starved when the pool is full."""

from __future__ import annotations

import numpy as np

from rlt_core.kv.pages import HostPages
from rlt_core.runtime.batch import I64
from rlt_core.schedule.slot_table import SlotTable


class PageReserve:
    """Gives residents the pages that they need for the next tick, the first in rank first.

    While the pool has plenty, pages are promised and given all at once by `settle`.
    """

    def __init__(self, table: SlotTable, pages: HostPages) -> None:
        self._table, self._pages = table, pages
        self._most_pages = pages.pages_per_row * pages.plan.table_rows  # that a slot can hold
        self._slots: list[I64] = []
        self._goals: list[I64] = []
        self._num_promised = 0

    @property
    def num_free(self) -> int:
        """Pages that are surely free once all promises are kept."""
        return self._pages.num_free - self._num_promised

    def secure(self, num_in_flight: int) -> I64:
        """Reserve for a tick behind `num_in_flight` others; the slots that cannot go on.

        A row advances at most one position a tick, so at the new tick it stands at most at
        position + num_in_flight. When the pages do not suffice for that, only what is needed at
        the known position is given. The starved come back first in rank first.
        """
        table, pages = self._table, self._pages
        goal = np.minimum(table.position + (num_in_flight + 1), table.cap)
        short = (goal > pages.page_limit).nonzero()[0]
        if not len(short) or self._give(short, goal.take(short)):
            return short[:0]
        return self._secure_now()

    def admit(self, slot: int, positions: int) -> None:
        """Pages for the prompt of a slot that has none; the caller knows that they are there."""
        if not self._give(np.array([slot]), np.array([positions])):
            raise AssertionError(f"slot {slot} was admitted without pages for {positions}")

    def settle(self) -> None:
        """Keep all promises, before anybody looks at pages or limits."""
        if not self._slots:
            return
        if len(self._slots) == 1:
            self._pages.grow(self._slots[0], self._goals[0])
        else:
            self._pages.grow(np.concatenate(self._slots), np.concatenate(self._goals))
        self._slots, self._goals, self._num_promised = [], [], 0

    def headroom(self) -> int:
        """Pages that let every resident which may grow do so once: admission leaves them."""
        table = self._table
        grows = (table.need > self._pages.page_limit) & (table.owner >= 0)
        return int(table.page_rows[grows].sum())

    def victim(self) -> int:
        """The slot to give up first: last in priority, then the latest arrival."""
        return int(self._table.ranked(self._table.residents())[-1])

    def _give(self, slots: I64, goals: I64) -> bool:
        """Pages for `goals` positions, or all of them promised; False when they do not suffice."""
        most = len(slots) * self._most_pages
        if most > self.num_free:
            self.settle()
            return self._pages.try_grow(slots, goals)
        self._slots.append(slots)
        self._goals.append(goals)
        self._num_promised += most
        return True

    def _secure_now(self) -> I64:
        table, pages = self._table, self._pages
        goal = np.minimum(table.position + 1, table.cap)
        short = table.ranked((goal > pages.page_limit).nonzero()[0])
        # No later slot takes pages while an earlier one lacks them.
        costs = pages.pages_needed(short, goal[short]).cumsum()
        num = int(np.searchsorted(costs, pages.num_free, side="right"))
        pages.grow(short[:num], goal[short[:num]])
        return short[num:]
