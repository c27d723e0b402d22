"""A tick's results reach the requests that had the slots when the tick was submitted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlt_core.runtime.batch import B8, F32, I64, TickOutput
from rlt_core.schedule.record import Record, State
from rlt_core.schedule.request import ABORT, ERROR, LENGTH, RUNNING, Events
from rlt_core.schedule.residency import Residency

_NO_INTS = np.zeros(0, np.int64)
_NOT_FINITE = "the logits were not finite (NaN or infinite): a damaged checkpoint or an overflow"


@dataclass(slots=True, kw_only=True)
class Flight:
    """A tick that was submitted: who owned the slots then, and what its prompt rows answer.

    owner int64 [S]: serials. score_slot, score_position int64 [X] or None: rows with a target, in
    the order of TickOutput's score arrays. scored: requests whose last scored row is in this tick.
    num_firsts: first outputs, from prompt rows. num_withdrawn: Residency's, at that time.
    """

    tick: int
    owner: I64
    num_withdrawn: int
    score_slot: I64 | None = None
    score_position: I64 | None = None
    scored: list[Record] = field(default_factory=list)
    num_firsts: int = 0


class Collector:
    """Applies results; makes the Events of each tick."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._endings: list[tuple[int, int]] = []  # (request id, finish) without a token

    @property
    def has_endings(self) -> bool:
        """Whether requests ended without a token and nobody was told yet."""
        return bool(self._endings)

    def abort(self, record: Record) -> None:
        """End a request, in whatever state; nothing more of it comes out."""
        _count_abort(self._residency, record)
        self._residency.withdraw(record)
        self._endings.append((record.request.request_id, ABORT))

    def apply(self, out: TickOutput, flight: Flight) -> Events:
        """The events of one tick."""
        table = self._residency.table
        index = (out.slot >= 0).nonzero()[0]
        slot = out.slot.take(index)
        request_id = table.request_id.take(slot)
        self._count(out, len(slot) - flight.num_firsts)
        # Before a first output in the same tick can end the request.
        score_ids = self._score_ids(flight)
        if flight.num_withdrawn == self._residency.num_withdrawn:
            events = _events(out, index, request_id)
            self._advance(slot, events.token, events.depth, events.finish, out.tick)
        else:
            # A request that ended by itself has no outputs in flight; one that lost its slot may.
            owner = flight.owner.take(slot)
            mine = table.owner.take(slot) == owner
            own = index[mine]
            self._advance(slot[mine], out.token[own], out.depth[own], out.finish[own], out.tick)
            kept = self._strays(out, index, owner, mine, request_id)
            events = _events(out, index[kept], request_id[kept])
        if score_ids is not None:
            _put_scores(events, out, flight, score_ids)
        self._end_scored(flight)
        return self._with_endings(events)

    def flush(self, tick: int) -> Events:
        """What is to be told when no tick is in flight."""
        return self._with_endings(empty_events(tick))

    def _advance(self, slot: I64, token: I64, depth: I64, finish: I64, tick: int) -> None:
        """Outputs of requests that are still in their slots."""
        residency = self._residency
        residency.counts.waited(residency.table.put(slot, token, depth, tick))
        ended = finish.nonzero()[0]
        if len(ended):
            residency.end_slots(slot[ended])

    def _strays(self, out: TickOutput, index: I64, owner: I64, mine: B8, request_id: I64) -> B8:
        """Outputs whose owner lost the slot: kept for the preempted, dropped for the ended.

        Fills in their request ids; which entries are kept.
        """
        kept: B8 = mine.copy()
        for i in np.flatnonzero(~mine).tolist():
            record = self._residency.by_serial.get(int(owner[i]))
            if record is None:
                continue
            at = index[i]
            record.tokens = np.append(record.tokens, np.int32(out.token[at]))
            record.depths = np.append(record.depths, np.int32(out.depth[at]))
            record.moved = out.tick
            kept[i], request_id[i] = True, record.request.request_id
            if out.finish[at] != RUNNING:
                self._residency.end(record)
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
            if record.state is not State.GONE:
                self._end(record, LENGTH)

    def _end(self, record: Record, finish: int) -> None:
        self._residency.end(record)
        self._endings.append((record.request.request_id, finish))

    def _with_endings(self, events: Events) -> Events:
        if self._endings:
            endings, self._endings = np.array(self._endings, np.int64), []
            _append(events, endings[:, 0], endings[:, 1])
        return events

    def _count(self, out: TickOutput, num_left: int) -> None:
        counts = self._residency.counts
        ran, parked, low, high, early = out.counts.tolist()
        counts.mixed_depths += ran > 0 and low < high
        counts.parked_rows += parked
        counts.early_rows += early
        counts.decode_rows += num_left


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
    none = np.zeros(0, np.float32)
    return Events(
        tick=tick,
        request_id=_NO_INTS,
        token=_NO_INTS,
        depth=_NO_INTS,
        logprob=none,
        rank=_NO_INTS,
        finish=_NO_INTS,
    )


def _events(out: TickOutput, index: I64, request_id: I64) -> Events:
    finish = out.finish.take(index)
    events = Events(
        tick=out.tick,
        request_id=request_id,
        token=out.token.take(index),
        depth=out.depth.take(index),
        logprob=out.logprob.take(index),
        rank=out.rank.take(index),
        finish=finish,
    )
    if out.top_ids is not None and out.top_logprobs is not None and out.top_ids.shape[1]:
        events.top_ids, events.top_logprobs = out.top_ids[index], out.top_logprobs[index]
    if out.logits is not None:
        events.logits = out.logits[index]
    if ERROR in finish.tolist():
        events.errors = dict.fromkeys(request_id[finish == ERROR].tolist(), _NOT_FINITE)
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
    events.request_id = np.concatenate((events.request_id, request_id))
    events.token = np.concatenate((events.token, np.full(num, -1, np.int64)))
    events.depth = np.concatenate((events.depth, np.zeros(num, np.int64)))
    events.rank = np.concatenate((events.rank, np.zeros(num, np.int64)))
    events.finish = np.concatenate((events.finish, finish))
    events.logprob = np.concatenate((events.logprob, np.full(num, np.nan, np.float32)))
    for name in ("top_ids", "top_logprobs", "logits"):
        values = getattr(events, name)
        if values is not None:
            setattr(events, name, _padded(values, num))


def _padded(values: F32 | I64, num: int) -> F32 | I64:
    return np.concatenate((values, np.zeros((num, *values.shape[1:]), values.dtype)))


def _count_abort(residency: Residency, record: Record) -> None:
    counts, state = residency.counts, record.state
    counts.aborts_waiting += state is State.WAITING
    counts.aborts_prompt += state is State.PROMPT
    counts.aborts_decode += state is State.DECODE
    counts.aborts_preempted += state is State.PREEMPTED
