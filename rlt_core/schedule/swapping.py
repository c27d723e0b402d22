"""Preempted requests whose pages wait in host memory, instead of being computed again."""

from __future__ import annotations

from rlt_core.kv.pages import HostPages
from rlt_core.kv.swap import SwapSpace
from rlt_core.runtime.batch import PageCopy, Resumed
from rlt_core.schedule.record import DECODE, Record, Swapped


class Swapping:
    """Sends pages of decoding requests out, and back when they have a slot again.

    out, back: what the next tick must tell the device. A request that reads the state of the
    position before it is computed again (its states are not kept), and so is one whose layout
    hides keys (so are the depths of its positions); prompts in progress are, too, and what has rows
    behind its front that are not done.
    """

    def __init__(
        self, pages: HostPages, num_pages: int, ticks_in_flight: int, *, trailing: int = 0
    ) -> None:
        """trailing: positions of a request that may not be written yet (Plan.num_trailing)."""
        self.space = SwapSpace(num_pages)
        self._pages, self._size = pages, pages.plan.page_size
        self._on = num_pages > 0 and not pages.plan.hides and not trailing
        self._ahead = ticks_in_flight
        self.num_out = self.num_back = 0  # pages
        self.out: list[PageCopy] = []
        self.back: list[Resumed] = []

    def leave(self, record: Record) -> bool:
        """Send out the pages of a request that is about to lose its slot; whether that is done.

        Ticks in flight may still commit positions: their pages go along.
        """
        if not self._on or record.chains or record.state is not DECODE:
            return False
        known = len(record.request.prompt) + len(record.tokens) + self._ahead
        columns = min(-(-known // self._size), int(self._pages.columns[record.slot]))
        pages = self._pages.held(record.slot, columns)
        places = self.space.take(len(pages))
        if places is None:
            return False
        self.out.append(PageCopy(pages=pages, host=places))
        self.num_out += len(pages)
        record.swapped = Swapped(places.reshape(-1, columns))
        return True

    def resume(self, record: Record, start: int) -> int:
        """Bring a request back that has its new slot and pages; the first `start` columns are
        there already. The position at which its last output enters."""
        assert record.swapped is not None, record
        position = len(record.request.prompt) + len(record.tokens) - 1
        end = -(-position // self._size)
        places = record.swapped.pages
        self.back.append(
            Resumed(
                slot=record.slot,
                token=int(record.tokens[-1]),
                position=position,
                copy=PageCopy(
                    pages=self._pages.held(record.slot, end, min(start, end)),
                    host=places[:, min(start, end) : end].ravel(),
                ),
            )
        )
        self.num_back += len(self.back[-1].copy.pages)
        self.forget(record)
        return position

    def forget(self, record: Record) -> None:
        """What it left is not needed any more."""
        if record.swapped is not None:
            # Given to another, they are overwritten behind the copy back, in the copies' order.
            self.space.give_back(record.swapped.pages.ravel())
            record.swapped = None

    def take(self) -> tuple[list[PageCopy], list[Resumed]]:
        """What was sent out and brought back since the last call."""
        out, back, self.out, self.back = self.out, self.back, [], []
        return out, back
