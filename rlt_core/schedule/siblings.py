"""Requests that wait for blocks which a resident is about to write, instead of writing them too.

Siblings of one prompt arrive together: the first one runs it, the others find it in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.schedule.record import Record


class Siblings:
    """Who writes which block next, and who stands aside until that is done."""

    def __init__(self) -> None:
        self._writer: dict[bytes, Record] = {}
        self._aside: dict[bytes, list[Record]] = {}

    @property
    def num_aside(self) -> int:
        """Requests that stand aside."""
        return sum(map(len, self._aside.values()))

    def stands_aside(self, record: Record, keys: Sequence[bytes]) -> bool:
        """Whether a request without a slot that lacks these blocks waits for others to write them:
        it does where that saves it half of them."""
        num = 0
        while num < len(keys) and keys[num] in self._writer:
            num += 1
        if not num or 2 * num < len(keys):
            return False
        record.aside = keys[num - 1]
        self._aside.setdefault(record.aside, []).append(record)
        return True

    def begins(self, record: Record, keys: Sequence[bytes]) -> None:
        """The request has a slot and will write these blocks."""
        for key in keys:
            self._writer.setdefault(key, record)

    def ends(self, record: Record, keys: Sequence[bytes]) -> list[Record]:
        """These blocks are written, or the request lost its slot; who need not wait any more."""
        woken: list[Record] = []
        for key in keys:
            if self._writer.get(key) is record:
                del self._writer[key]
                woken += self._aside.pop(key, ())
        for other in woken:
            other.aside = None
        return woken

    def withdraw(self, record: Record) -> None:
        """A request that stood aside has ended."""
        if record.aside is not None:
            self._aside[record.aside].remove(record)
            record.aside = None
