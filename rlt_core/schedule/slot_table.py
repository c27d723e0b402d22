"""What the host knows of each slot, as arrays; no object per decode row."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rlt_core.runtime.batch import B8, I32, I64
from rlt_core.schedule.record import Record, State

NOBODY = -1


class SlotTable:
    """Arrays [S] by slot.

    owner: serial of the request in the slot, or -1. decodes: its prompt is done. position: of the
    input that the device runs or will run next, as far as the results that are in tell. need:
    positions whose KV it may ever hold. wanted: positions that must have pages before a forced
    cell may start, 0 where admission gave them. tokens, depths int32 [S, max_len]: its outputs.
    """

    def __init__(self, num_slots: int, max_len: int) -> None:
        def ints(fill: int = 0) -> I64:
            return np.full(num_slots, fill, np.int64)

        self.owner, self.request_id = ints(NOBODY), ints(NOBODY)
        self.priority, self.position, self.prompt_len = ints(), ints(), ints()
        self.num_out, self.need, self.wanted, self.moved = ints(), ints(), ints(), ints()
        self.page_rows = ints()
        self.decodes: B8 = np.zeros(num_slots, np.bool_)
        self.tokens: I32 = np.zeros((num_slots, max_len), np.int32)
        self.depths: I32 = np.zeros((num_slots, max_len), np.int32)
        # One index for both: a flat view of [S, max_len].
        self._flat_tokens, self._flat_depths = self.tokens.reshape(-1), self.depths.reshape(-1)
        self._base = np.arange(num_slots, dtype=np.int64) * max_len
        self.records: list[Record | None] = [None] * num_slots
        self._free = deque(range(num_slots))
        self._used: B8 = np.zeros(num_slots, np.bool_)

    @property
    def num_free(self) -> int:
        """Slots without an owner."""
        return len(self._free)

    def take(self, record: Record) -> bool:
        """Give a request the slot that has been free longest; True when it had an owner."""
        slot = self._free.popleft()
        record.slot, record.state = slot, State.PROMPT
        request, made = record.request, len(record.tokens)
        self.owner[slot], self.request_id[slot] = record.serial, request.request_id
        self.priority[slot] = request.priority
        self.prompt_len[slot] = len(request.prompt)
        self.num_out[slot], self.need[slot], self.wanted[slot] = made, record.need, 0
        self.moved[slot], self.page_rows[slot] = record.moved, record.pages_prompt
        if made:
            self.tokens[slot, :made], self.depths[slot, :made] = record.tokens, record.depths
        self.records[slot] = record
        reused, self._used[slot] = bool(self._used[slot]), True
        return reused

    def begin_decode(self, record: Record, position: int) -> None:
        """Its prompt (or replay) is done once the tick being built has run."""
        record.state = State.DECODE
        self.decodes[record.slot] = True
        self.position[record.slot] = position

    def save(self, record: Record) -> None:
        """The record keeps its outputs so far, for a resume in another slot."""
        slot, made = record.slot, int(self.num_out[record.slot])
        record.tokens = self.tokens[slot, :made].copy()
        record.depths = self.depths[slot, :made].copy()
        record.moved = int(self.moved[slot])

    def release(self, record: Record) -> None:
        """Take the slot back."""
        slot, record.slot = record.slot, -1
        self.owner[slot], self.decodes[slot], self.records[slot] = NOBODY, False, None
        self.wanted[slot] = self.need[slot] = 0
        self._free.append(slot)

    def put(self, slots: I64, tokens: I64, depths: I64, tick: int) -> int:
        """One more output in each of these slots (distinct); the longest wait in ticks."""
        made = self.num_out.take(slots)
        at = self._base.take(slots) + made
        self._flat_tokens[at] = tokens
        self._flat_depths[at] = depths
        self.position[slots] = self.prompt_len.take(slots) + made
        self.num_out[slots] = made + 1
        waited = tick - self.moved.take(slots)
        self.moved[slots] = tick
        return int(np.maximum.reduce(waited, initial=0))

    def touch(self, slot: int, tick: int) -> int:
        """This slot advanced in `tick`; its wait since the last advance."""
        waited = tick - int(self.moved[slot])
        self.moved[slot] = tick
        return waited

    def ranked(self, slots: I64) -> I64:
        """The slots, the first to be served first: by priority, then arrival."""
        return slots[np.lexsort((self.owner[slots], self.priority[slots]))]

    def residents(self) -> I64:
        """Slots with an owner."""
        return np.flatnonzero(self.owner != NOBODY)

    def decode_slots(self) -> NDArray[np.int64]:
        """Slots whose rows may advance."""
        return self.decodes.nonzero()[0]
