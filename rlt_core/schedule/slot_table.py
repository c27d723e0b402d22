"""What the host knows of each slot, as arrays; no object per decode row."""

from __future__ import annotations

from collections import deque

import numpy as np

from rlt_core.runtime.batch import B8, I32, I64
from rlt_core.schedule.record import DECODE, PROMPT, Record
from rlt_core.schedule.request import TickCounts

NOBODY = -1
FAR = 1 << 40  # no position, and no output's number, is as large
# Of about four ticks: twice as long is no quicker on the whole, and its burst shows in the p99.
_LONGEST_LOG = 8


class SlotTable:
    """Arrays [S] by slot.

    owner: serial of the request in the slot, or -1; ticks in flight know their owners by this array
    (see `keep_owners`). decodes: its prompt is done. cap: positions
    that may get pages now: in a prompt 0 (admission gave them) or what its next cells need; then
    `need`, the positions whose KV it may ever hold. mask_index: the output that the latest mask is
    for; far away where the request has no masks. num_taken: slots given so far.
    """

    def __init__(self, num_slots: int, max_len: int, counts: TickCounts) -> None:
        def ints(fill: int = 0) -> I64:
            return np.full(num_slots, fill, np.int64)

        self.owner, self.request_id = ints(NOBODY), ints(NOBODY)
        self.priority, self.cap, self.need = ints(), ints(), ints()
        self.mask_index = ints(FAR)
        self.decodes: B8 = np.zeros(num_slots, np.bool_)
        self._decoding: I64 | None = None  # `decoding`, until it changes
        self.records: list[Record | None] = [None] * num_slots
        # Of slots that decode: the tick of the last advance; where the next output goes in the
        # flat outputs; from there to the position of the next input.
        self._moved, self._cursor, self._ahead = ints(), ints(), ints(FAR)
        self._tokens: I32 = np.zeros(num_slots * max_len, np.int32)
        self._depths: I32 = np.zeros(num_slots * max_len, np.int32)
        # What came last waits here until somebody looks, in order: (slots, outputs, tick), or
        # (slot, cursor, tick) of one that begins.
        self._num_settles, self._begun = 0, [0] * num_slots  # settles before a slot's first output
        self._log: list[tuple[I64, I64, int] | tuple[int, int, int]] = []
        self._counts, self._max_len = counts, max_len
        self.free = deque(range(num_slots))  # the one that has been free longest comes first
        self.num_taken = 0

    def take(self, record: Record) -> None:
        """Give a request the slot that has been free longest."""
        slot = self.free.popleft()
        record.slot, record.state = slot, PROMPT
        self.owner[slot], self.request_id[slot] = record.serial, record.request.request_id
        self.priority[slot], self.need[slot] = record.rank[0], record.need
        self.records[slot] = record
        self.num_taken += 1

    def begin_decode(self, record: Record, position: int) -> None:
        """Its prompt (or replay) is done once the tick being built has run."""
        slot, record.state = record.slot, DECODE
        cursor = slot * self._max_len
        # The first output moves it on by one; a resumed row's input is known already.
        ahead = position - cursor - 1
        if made := len(record.tokens):
            cursor, ahead = self._restore(record, cursor), position - cursor - made
        self.decodes[slot], self.cap[slot], self._ahead[slot] = True, record.need, ahead
        self._decoding = None
        self._log.append((slot, cursor, record.moved))
        self._begun[slot] = self._num_settles

    def _restore(self, record: Record, start: int) -> int:
        """Write down the outputs that a resumed request has; where its next one goes."""
        # The slot's former owner may have outputs in the log, which would go over these.
        self.settle()
        end = start + len(record.tokens)
        self._tokens[start:end], self._depths[start:end] = record.tokens, record.depths
        return end

    def decoding(self) -> I64:
        """The slots that decode, in order; ticks in flight keep the array."""
        if self._decoding is None:
            self._decoding = self.decodes.nonzero()[0]
        return self._decoding

    def save(self, record: Record) -> None:
        """The record keeps its outputs so far, for a resume in another slot."""
        if record.state is not DECODE:
            return
        tokens, depths = self.outputs(record)
        record.tokens, record.depths = tokens.copy(), depths.copy()
        record.moved = int(self._moved[record.slot])

    def outputs(self, record: Record) -> tuple[I32, I32]:
        """Tokens and depths of a request that decodes, so far."""
        self.settle()
        made = slice(record.slot * self._max_len, int(self._cursor[record.slot]))
        return self._tokens[made], self._depths[made]

    def left_early(self, record: Record, most: int) -> bool:
        """Whether one of the outputs 1 to `most` of a request that decodes is known to be read
        below full depth. Only what is written down counts: to settle for one costs more."""
        slot, loops = record.slot, record.request.loops
        start = slot * self._max_len + 1
        if self._begun[slot] == self._num_settles:
            return False
        depths = self._depths[start : min(self._cursor.item(slot), start + most)]
        # A place is found in a fifth of the time of a reduction.
        return len(depths) > 0 and depths.item(depths.argmin()) < loops

    def keep_owners(self) -> None:
        """A request is about to lose its slot before its end: what comes of ticks in flight may be
        its own, so they keep the array of owners, and a copy changes from now on."""
        self.owner = self.owner.copy()

    def release(self, record: Record) -> None:
        """Take the slot back."""
        slot, record.slot = record.slot, -1
        self.owner[slot], self.decodes[slot], self.records[slot] = NOBODY, False, None
        self.cap[slot], self._ahead[slot], self._decoding = 0, FAR, None
        self.free.append(slot)

    def positions(self) -> I64:
        """Of the next inputs [S], as far as the results that are in tell (one less until the first
        output came in; far away in the prompt)."""
        self.settle()
        return self._cursor + self._ahead

    def num_made(self, slots: I64) -> I64:
        """Outputs of slots that decode, as far as the results that are in tell."""
        self.settle()
        return self._cursor[slots] - slots * self._max_len

    def moved(self, slots: I64) -> I64:
        """The ticks of the last advances of slots that decode."""
        self.settle()
        return self._moved[slots]

    def put(self, slots: I64, outputs: I64, tick: int) -> None:
        """One more output in each of these slots (distinct): outputs int64 [2, N], tokens and
        depths. Both arrays are kept."""
        self._log.append((slots, outputs, tick))
        if len(self._log) >= _LONGEST_LOG:
            self.settle()

    def settle(self) -> None:
        """Write down what is in the log."""
        log, self._log, counts = self._log, [], self._counts
        self._num_settles += 1
        at, made = [], []
        for slots, outputs, tick in log:
            if isinstance(slots, int):
                self._cursor[slots], self._moved[slots] = outputs, tick
            elif len(slots):
                before = self._moved[slots]
                # A fifth of what a reduction costs.
                wait = tick - before.item(before.argmin())
                if wait > counts.max_wait_ticks:
                    counts.max_wait_ticks = wait
                self._moved[slots] = tick
                where = self._cursor[slots]
                self._cursor[slots] = where + 1
                at.append(where)
                made.append(outputs)
        if at:
            # In the order of the ticks: a slot's later owner writes over the earlier one.
            flat = np.concatenate(at)
            self._tokens[flat], self._depths[flat] = np.concatenate(made, 1, dtype=np.int32)

    def ranked(self, slots: I64) -> I64:
        """The slots, the first to be served first: by priority, then arrival."""
        return slots[np.lexsort((self.owner[slots], self.priority[slots]))]

    def residents(self) -> I64:
        """Slots with an owner."""
        return np.flatnonzero(self.owner != NOBODY)
