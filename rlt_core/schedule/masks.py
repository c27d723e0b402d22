"""The masks of live requests: the latest of each, and which of them the device has not got yet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import I32, I64
from rlt_core.runtime.mask_rows import MaskRows, allows_any, num_words
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest
from rlt_core.schedule.slot_table import FAR, SlotTable


class MaskBook:
    """Keeps the latest mask of every masked request, with its record: so it outlives the slot.

    A row whose mask is not there parks before its head. Where every row that is left waits for
    one, ticks would run in vain: `all_wait` tells, and the stage sleeps until a message comes.
    new: requests whose latest mask the device has not got yet, by slot.
    """

    def __init__(self, table: SlotTable, vocab_size: int, max_depth: int) -> None:
        self._table, self._vocab_size, self._max_depth = table, vocab_size, max_depth
        self.new: dict[int, Record] = {}
        self._masked: set[int] = set()  # slots of masked requests

    def check(self, request: EngineRequest) -> None:
        """RequestError unless a masked request brings the mask of its first output."""
        if request.mask is None:
            return
        if request.kind != "generate":
            raise RequestError("mask", "a text to score has no masks")
        reason = self._fault(request.mask)
        if reason is not None:
            raise RequestError("mask", reason)

    def put(
        self, records: Mapping[int, Record], request_id: I64, index: I64, words: I32
    ) -> list[tuple[Record, str]]:
        """Masks that came (stage.messages.Masks); the requests that cannot go on, and why."""
        failed = []
        for i, number in enumerate(request_id.tolist()):
            record = records.get(number)
            reason = None if record is None else self._put(record, int(index[i]), words[i])
            if record is not None and reason is not None:
                failed.append((record, reason))
        return failed

    def place(self, record: Record) -> None:
        """The request has a slot: the device needs its latest mask."""
        if record.mask is not None:
            self._masked.add(record.slot)
            self.new[record.slot] = record
            self._table.mask_index[record.slot] = record.mask_index

    def leave(self, slot: int) -> None:
        """A request gives its slot back."""
        self._table.mask_index[slot] = FAR
        self._masked.discard(slot)
        self.new.pop(slot, None)

    def take_new(self) -> MaskRows | None:
        """What the device has not got yet; it has now."""
        if not self.new:
            return None
        new, self.new = self.new, {}
        return MaskRows(
            slot=np.array(list(new), np.int64),
            index=np.array([record.mask_index for record in new.values()], np.int64),
            words=np.stack([record.mask for record in new.values() if record.mask is not None]),
        )

    def all_wait(self, slots: I64, tick: int) -> bool:
        """Whether each of these slots, which decode, is done with its loops by `tick` and waits
        for a mask: then nothing comes of a tick until a mask is there."""
        # Where one of them has no masks nothing is looked at: this is asked in most ticks, and what
        # the table has in its log is written down in one go, some ticks at a time.
        if self.new or len(self._masked) < len(slots):
            return False
        table = self._table
        if not (table.mask_index[slots] < table.num_made(slots)).all():
            return False
        return tick > int(table.moved(slots).max()) + self._max_depth

    def _put(self, record: Record, index: int, words: I32) -> str | None:
        """Why the request cannot go on; a mask that is older than its last is ignored."""
        if record.request.mask is None:
            return "a mask came for a request that was not sent as a masked one"
        if index <= record.mask_index:
            return None
        reason = self._fault(words)
        if reason is not None:
            return f"output {index}: {reason}"
        record.mask, record.mask_index = words, index
        if record.resident:
            self.place(record)
        return None

    def _fault(self, words: I32) -> str | None:
        """Why no token can be drawn under a mask; None when one can."""
        width = num_words(self._vocab_size)
        if words.shape != (width,):
            return f"the mask has {words.size} words; {self._vocab_size} tokens take {width}"
        if not allows_any(words, self._vocab_size):
            return "the mask lets no token through, so that nothing can be drawn"
        return None
