"""What the host knows of each slot, as arrays; no object per decode row."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rlt_core.runtime.batch import B8, I32, I64
from rlt_core.schedule.record import Record, State

NOBODY = -1
_FAR = 1 << 40
_LOG_TICKS = 16


class SlotTable:
    """Arrays [S] by slot.

    owner: serial of the request in the slot, or -1. decodes: its prompt is done. cap: positions
    that may get pages now: in a prompt 0 (admission gave them) or what its next cells need; then
    `need`, the positions whose KV it may ever hold. cursor: where its next output goes in the flat
    outputs. ahead: from there to the position of its next input. moved: the tick of its last
    advance.
    """

    def __init__(self, num_slots: int, max_len: int) -> None:
        def ints(fill: int = 0) -> I64:
            return np.full(num_slots, fill, np.int64)

        self.owner, self.request_id = ints(NOBODY), ints(NOBODY)
        self.priority, self.moved, self.page_rows = ints(), ints(), ints()
        self.ahead, self.cap, self.need = ints(_FAR), ints(), ints()
        self.decodes: B8 = np.zeros(num_slots, np.bool_)
        self.records: list[Record | None] = [None] * num_slots
        self.cursor: I64 = np.arange(num_slots, dtype=np.int64) * max_len
        # By cursor. What came last waits in the log: outputs are rarely looked at.
        self._tokens: I32 = np.zeros(num_slots * max_len, np.int32)
        self._depths: I32 = np.zeros(num_slots * max_len, np.int32)
        self._log: list[tuple[I64, I64]] = []
        self._max_len = max_len
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
        self.owner[slot], self.request_id[slot] = record.serial, record.request.request_id
        self.priority[slot] = record.request.priority
        self.need[slot], self.page_rows[slot] = record.need, record.pages_prompt
        self.moved[slot] = record.moved
        first, made = slot * self._max_len, len(record.tokens)
        self.cursor[slot] = first + made
        if made:
            self._write_log()
            self._tokens[first : first + made] = record.tokens
            self._depths[first : first + made] = record.depths
        self.records[slot] = record
        reused, self._used[slot] = bool(self._used[slot]), True
        return reused

    def begin_decode(self, record: Record, position: int) -> None:
        """Its prompt (or replay) is done once the tick being built has run."""
        slot, record.state = record.slot, State.DECODE
        self.decodes[slot] = True
        self.cap[slot] = record.need
        # `put` moves it on by one; a resumed row's input is known already.
        self.ahead[slot] = position - int(self.cursor[slot]) - (not len(record.tokens))

    def num_out(self, slot: int) -> int:
        """Outputs that came in."""
        return int(self.cursor[slot]) - slot * self._max_len

    def save(self, record: Record) -> None:
        """The record keeps its outputs so far, for a resume in another slot."""
        self._write_log()
        outputs = slice(record.slot * self._max_len, int(self.cursor[record.slot]))
        record.tokens = self._tokens[outputs].copy()
        record.depths = self._depths[outputs].copy()
        record.moved = int(self.moved[record.slot])

    def release(self, record: Record) -> None:
        """Take the slot back."""
        slot, record.slot = record.slot, -1
        self.owner[slot], self.decodes[slot], self.records[slot] = NOBODY, False, None
        self.cap[slot], self.need[slot], self.ahead[slot] = 0, 0, _FAR
        self._free.append(slot)

    def positions(self) -> I64:
        """Of the next inputs [S], as far as the results that are in tell (one less until the first
        output came in; far away in the prompt)."""
        return self.cursor + self.ahead

    def put(self, slots: I64, outputs: I64, tick: int) -> int:
        """One more output in each of these slots (distinct): outputs int64 [2, N], tokens and
        depths; the longest wait in ticks."""
        if not len(slots):
            return 0
        at = self.cursor.take(slots)
        self._log.append((at, outputs))
        if len(self._log) == _LOG_TICKS:
            self._write_log()
        self.cursor[slots] = at + 1
        longest = tick - int(np.minimum.reduce(self.moved.take(slots)))
        self.moved[slots] = tick
        return longest

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

    def _write_log(self) -> None:
        if self._log:
            # In the order of the ticks: a slot's later owner writes over the earlier one.
            at = np.concatenate([at for at, _ in self._log])
            self._tokens[at] = np.concatenate([outputs[0] for _, outputs in self._log])
            self._depths[at] = np.concatenate([outputs[1] for _, outputs in self._log])
            self._log = []
