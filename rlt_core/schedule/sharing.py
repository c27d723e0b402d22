"""The prefix cache through a request's life: what it begins with, writes, waits for and leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rlt_core.kv.pages import HostPages
from rlt_core.kv.prefix import Block
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.prefix import Prefixes
from rlt_core.schedule.record import DECODE, WAITING, Record
from rlt_core.schedule.request import TickCounts
from rlt_core.schedule.siblings import Siblings
from rlt_core.schedule.slot_table import SlotTable


class Sharing:
    """Called by Residency at the changes of a request's state; `wake` queues a request again.

    told: (request id, positions found) that no client was told yet.
    """

    def __init__(
        self,
        prefixes: Prefixes,
        table: SlotTable,
        pages: HostPages,
        counts: TickCounts,
        wake: Callable[[Record], None],
    ) -> None:
        self._prefixes, self._table, self._pages = prefixes, table, pages
        self._counts, self._wake_one = counts, wake
        self._siblings = Siblings()
        self._size = pages.plan.page_size
        # Requests of fewer positions fill no page.
        self._least = self._size if prefixes.on else sys.maxsize
        self.told: list[tuple[int, int]] = []

    @property
    def num_aside(self) -> int:
        """Requests that wait for others' blocks, without standing in the queue."""
        return self._siblings.num_aside

    def find(self, record: Record, forced: Forced) -> list[Block] | None:
        """The blocks that a request begins with; None where it leaves the queue to wait for blocks
        that residents are about to write. A swapped request whose planes were dropped takes all
        its pages from the host: blocks have the prompt's planes."""
        if len(forced.tokens) < self._least or (record.swapped is not None and forced.rules.drops):
            return []
        chain, lacks = self._prefixes.find(record, forced)
        if lacks and record.state is WAITING and self._siblings.stands_aside(record, lacks):
            self._counts.stood_aside += 1
            return None
        return chain

    def placed(self, record: Record, forced: Forced, *, first: bool) -> None:
        """A request with keys has its slot and begins at record.next_start; first: it never had
        one."""
        if record.next_start:
            self._counts.cache_hits += 1
            self._counts.cached_positions += record.next_start
            if first:
                self.told.append((record.request.request_id, record.next_start))
        if record.swapped is None:
            self._siblings.begins(record, self._to_write(record, forced))

    def cell_ended(self, record: Record, forced: Forced, end: int) -> None:
        """Positions before `end` of a request that has keys are written by the tick being built."""
        if keys := self._prefixes.prompt_done(record, forced, end):
            self._wake(self._siblings.ends(record, keys))

    def leave(self, record: Record, *, ended: bool) -> None:
        """A resident is about to lose its slot: publish what it wrote. Of a preempted one tokens
        and depths are saved already."""
        if not self._prefixes.on:
            return
        if record.keys and record.forced is not None:
            self._wake(self._siblings.ends(record, self._to_write(record, record.forced)))
        if record.state is not DECODE:
            return
        if not ended:
            self._prefixes.leave(record, record.tokens, record.depths, ended=False)
            return
        # Of its outputs the next page to be published has the first so many.
        blocks = self._pages.shared.count(record.slot)
        num = (blocks + 1) * self._size - len(record.request.prompt)
        if self._prefixes.keeps_early or not self._table.left_early(record, num):
            self._prefixes.leave(record, *self._table.outputs(record), ended=True)

    def withdraw(self, record: Record) -> None:
        """A request that stood aside has ended."""
        self._siblings.withdraw(record)

    def _to_write(self, record: Record, forced: Forced) -> list[bytes]:
        """Keys of the blocks that a resident's prompt is still to write."""
        if record.keys is None:
            return []
        have = self._pages.shared.count(record.slot)
        return record.keys[have : self._prefixes.num_prompt_blocks(forced)]

    def _wake(self, woken: list[Record]) -> None:
        for record in woken:
            self._wake_one(record)
