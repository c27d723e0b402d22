"""A tick's results reach the requests that had the slots when the tick was submitted."""

from __future__ import annotations

import numpy as np

from rlt_core.runtime.batch import (
    B8,
    EVENT_DEPTH,
    EVENT_FINISH,
    EVENT_SLOT,
    EVENT_TOKEN,
    F32,
    I64,
    TickOutput,
    logprob_bits,
)
from rlt_core.schedule.flight import Flight
from rlt_core.schedule.record import DECODE, GONE, PREEMPTED, PROMPT, WAITING, Record
from rlt_core.schedule.request import ABORT, ERROR, LENGTH, RUNNING, Events
from rlt_core.schedule.residency import Residency

EVENT_ID = EVENT_SLOT  # an event's columns are a tick's, with request ids for slots
_NOT_FINITE = "the logits were not finite (NaN or infinite): a damaged checkpoint or an overflow"


class Collector:
    """Applies results; makes the Events of each tick."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        # -1, which is no slot, finds the last entry; a comparison costs twice as much.
        self._is_slot: B8 = np.arange(residency.config.num_slots, -1, -1) > 0
        self._endings: list[tuple[int, int]] = []  # (request id, finish) without a token
        self._reasons: dict[int, str] = {}  # of those that failed

    @property
    def has_endings(self) -> bool:
        """Whether requests ended without a token and nobody was told yet."""
        return bool(self._endings)

    def abort(self, record: Record) -> None:
        """End a request, in whatever state; nothing more of it comes out."""
        _count_abort(self._residency, record)
        self._residency.withdraw(record)
        self._endings.append((record.request.request_id, ABORT))

    def fail(self, record: Record, reason: str) -> None:
        """End a request that cannot go on; its client is told why."""
        self._residency.withdraw(record)
        self._endings.append((record.request.request_id, ERROR))
        self._reasons[record.request.request_id] = reason

    def apply(self, out: TickOutput, flight: Flight) -> Events:
        """The events of one tick."""
        # Before a first output in the same tick can end the request.
        score_ids = None if flight.score_slot is None else self._score_ids(flight)
        slots, table = out.columns[EVENT_SLOT], self._residency.table
        places = self._is_slot[slots].nonzero()[0]
        slots = slots[places]
        self._count(out, len(places) - flight.num_firsts)
        if out.drafts is not None:
            # Those of a request that lost its slot say nothing of who has it now.
            mine = table.owner[slots] == flight.owner[slots]
            self._residency.trust.follow(slots[mine], out.drafts[0].take(places)[mine])
        # None of these places is too large, and so need not be compared.
        columns = out.columns.take(places, 1, mode="clip")
        if flight.owner is table.owner:
            # Every output's request is still in its slot.
            columns[EVENT_ID] = table.request_id[slots]
            failed = self._advance(slots, columns, out.tick)
            events = _events(out, columns, places, failed)
        else:
            events = self._some_mine(out, columns, places, slots, flight.owner[slots])
        if score_ids is not None:
            _put_scores(events, out, flight, score_ids)
        if flight.scored:
            self._end_scored(flight)
        if self._residency.sharing.told:
            self._put_cached(events)
        return self._with_endings(events) if self._endings else events

    def flush(self, tick: int) -> Events:
        """What is to be told when no tick is in flight."""
        return self._with_endings(empty_events(tick))

    def _some_mine(
        self, out: TickOutput, columns: I64, places: I64, slots: I64, owner: I64
    ) -> Events:
        """A request that ended by itself has no outputs in flight; one that lost its slot may."""
        table = self._residency.table
        mine = table.owner[slots] == owner
        columns[EVENT_ID] = table.request_id[slots]
        failed = self._advance(slots[mine], columns[:, mine], out.tick)
        kept = self._strays(columns, out.tick, owner, mine, failed)
        return _events(out, columns[:, kept], places[kept], failed)

    def _advance(self, slots: I64, columns: I64, tick: int) -> list[int]:
        """Outputs of requests that are still in their slots; ids of those that failed."""
        table = self._residency.table
        table.put(slots, columns[EVENT_TOKEN : EVENT_DEPTH + 1], tick)
        finish, failed = columns[EVENT_FINISH], []
        for i in finish.nonzero()[0].tolist():
            if finish.item(i) == ERROR:
                failed.append(int(columns[EVENT_ID, i]))
            record = table.records[slots.item(i)]
            assert record is not None, slots[i]
            self._residency.end(record)
        return failed

    def _strays(self, columns: I64, tick: int, owner: I64, mine: B8, failed: list[int]) -> B8:
        """Outputs whose owner lost the slot: kept for the preempted, dropped for the ended.

        Fills in their request ids, adds those that failed; which entries are kept.
        """
        kept: B8 = mine.copy()
        for i in np.flatnonzero(~mine).tolist():
            record = self._residency.by_serial.get(int(owner[i]))
            if record is None:
                continue
            record.tokens = np.append(record.tokens, np.int32(columns[EVENT_TOKEN, i]))
            record.depths = np.append(record.depths, np.int32(columns[EVENT_DEPTH, i]))
            record.moved = tick
            kept[i], columns[EVENT_ID, i] = True, record.request.request_id
            if columns[EVENT_FINISH, i] != RUNNING:
                self._residency.end(record)
            if columns[EVENT_FINISH, i] == ERROR:
                failed.append(record.request.request_id)
        return kept

    def _score_ids(self, flight: Flight) -> I64 | None:
        """Request ids of the tick's scored rows [X], -1 where it ended; None without any."""
        if flight.score_slot is None or flight.score_position is None:
            return None
        owner = flight.owner[flight.score_slot]
        request_id = np.full(len(owner), -1, np.int64)
        for serial in np.unique(owner).tolist():
            record = self._residency.by_serial.get(serial)
            if record is not None:
                rows = owner == serial
                request_id[rows] = record.request.request_id
                record.num_scored = int(flight.score_position[rows].max()) + 1
        return request_id

    def _end_scored(self, flight: Flight) -> None:
        for record in flight.scored:
            if record.state is not GONE:
                self._end(record, LENGTH)

    def _end(self, record: Record, finish: int) -> None:
        self._residency.end(record)
        self._endings.append((record.request.request_id, finish))

    def _put_cached(self, events: Events) -> None:
        found = np.array(self._residency.sharing.told, np.int64)
        self._residency.sharing.told = []
        events.cached_request_id, events.cached_positions = found[:, 0], found[:, 1]

    def _with_endings(self, events: Events) -> Events:
        if self._endings:
            endings, self._endings = np.array(self._endings, np.int64), []
            if self._reasons:
                events.errors, self._reasons = {**events.errors, **self._reasons}, {}
            _append(events, endings[:, 0], endings[:, 1])
        return events

    def _count(self, out: TickOutput, num_left: int) -> None:
        counts = self._residency.counts
        ran, parked, low, high, early = out.counts.tolist()
        counts.mixed_depths += ran > 0 and low < high
        counts.parked_rows += parked
        counts.early_rows += early
        counts.decode_rows += num_left
        if out.drafts is not None:
            held, wasted = out.drafts
            counts.guesses_checked += int(np.count_nonzero(held >= 0))
            counts.guesses_held += int(np.count_nonzero(held > 0))
            counts.wasted_loops += int(wasted.sum())


_SCORE_FIELDS = (
    "score_logprob",
    "score_rank",
    "score_depth",
    "score_top_ids",
    "score_top_logprobs",
    "score_logits",
)


def empty_events(tick: int) -> Events:
    """Nothing happened."""
    return Events(tick=tick, columns=np.zeros((6, 0), np.int64))


def _events(out: TickOutput, columns: I64, places: I64, failed: list[int]) -> Events:
    """The events of these places; columns as in Events, failed: ids of requests that did."""
    events = Events(tick=out.tick, columns=columns)
    if out.top_ids is not None and out.top_logprobs is not None and out.top_ids.shape[1]:
        events.top_ids, events.top_logprobs = out.top_ids[places], out.top_logprobs[places]
    if out.drafts is not None:
        events.drafts = out.drafts[:, places]
    if out.logits is not None:
        events.logits = out.logits[places]
    if failed:
        events.errors = dict.fromkeys(failed, _NOT_FINITE)
    return events


def _put_scores(events: Events, out: TickOutput, flight: Flight, request_id: I64) -> None:
    index = np.flatnonzero(request_id >= 0)
    events.score_request_id = request_id[index]
    assert flight.score_position is not None, flight.tick
    events.score_position = flight.score_position[index]
    for name in _SCORE_FIELDS:
        values = getattr(out, name)
        setattr(events, name, None if values is None else values[index])


def _append(events: Events, request_id: I64, finish: I64) -> None:
    """Entries without a token: -1, depth and rank 0, no logprob."""
    num = len(request_id)
    added = np.zeros((6, num), np.int64)
    added[0], added[1], added[4] = request_id, -1, finish
    added[5] = logprob_bits(np.full(num, np.nan, np.float32))
    events.columns = np.concatenate((events.columns, added), 1)
    if events.drafts is not None:
        none = np.tile(np.array([[-1], [0]]), num)
        events.drafts = np.concatenate((events.drafts, none), 1)
    for name in ("top_ids", "top_logprobs", "logits"):
        values = getattr(events, name)
        if values is not None:
            setattr(events, name, _padded(values, num))


def _padded(values: F32 | I64, num: int) -> F32 | I64:
    return np.concatenate((values, np.zeros((num, *values.shape[1:]), values.dtype)))


def _count_abort(residency: Residency, record: Record) -> None:
    counts, state = residency.counts, record.state
    counts.aborts_waiting += state is WAITING
    counts.aborts_prompt += state is PROMPT
    counts.aborts_decode += state is DECODE
    counts.aborts_preempted += state is PREEMPTED
