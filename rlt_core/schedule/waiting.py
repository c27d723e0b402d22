"""Requests without a slot, in the order in which they get one."""

from __future__ import annotations

import heapq

from rlt_core.schedule.record import GONE, Record


class WaitingQueue:
    """By priority, then arrival; a preempted request keeps its arrival, so it goes first.

    The head is never passed by: a large request waits for pages, not for luck.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Record]] = []
        self.num = 0  # without those that were withdrawn

    def push(self, record: Record) -> None:
        heapq.heappush(self._heap, (record.rank, record))
        self.num += 1

    def head(self) -> Record | None:
        """The next request, left in place."""
        # Those that were withdrawn stay in the heap until they come up.
        while self._heap and self._heap[0][1].state is GONE:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Take the head out."""
        heapq.heappop(self._heap)
        self.num -= 1

    def withdraw(self) -> None:
        """A waiting request's state became GONE."""
        self.num -= 1
