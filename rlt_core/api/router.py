"""The open requests by id, and what a stage's answers mean to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlt_core.api.collector import Alternatives, Collector
from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import F32, I64
from rlt_core.schedule.request import ABORT, ERROR, RUNNING, STOP, Events
from rlt_core.stage.messages import Answer, RequestFailed, Tick


@dataclass(slots=True)
class Delivered:
    """What a delivery did: the collectors that have news, each once or more often, the ids of
    requests that a stop string ended, which the stage must be told to abort, and answers under a
    grammar that go on, with the token that each grew by, whose next masks must be made."""

    touched: list[Collector] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    grown: list[tuple[Collector, int]] = field(default_factory=list)


class Router:
    """Brings answers to collectors. Takes no lock: its owner lets one thread in at a time."""

    def __init__(self) -> None:
        self._open: dict[int, Collector] = {}
        self._next_id = 0

    def new_ids(self, count: int) -> range:
        """Request ids never used before."""
        first, self._next_id = self._next_id, self._next_id + count
        return range(first, first + count)

    def add(self, collectors: Iterable[Collector]) -> None:
        """From now on their answers are brought to them."""
        self._open.update({c.request.request_id: c for c in collectors})

    def drop(self, collectors: Iterable[Collector]) -> None:
        """Forgets requests; what still comes of them is thrown away."""
        for collector in collectors:
            self._open.pop(collector.request.request_id, None)

    def drop_all(self) -> list[Collector]:
        """Forgets every open request, and gives them."""
        collectors = list(self._open.values())
        self._open.clear()
        return collectors

    def deliver(self, answers: Sequence[Answer]) -> Delivered:
        """Brings a stage's answers to the open requests; done ones are open no more."""
        found = Delivered()
        for answer in answers:
            if isinstance(answer, Tick):
                self._take_cached(answer.events)
                self._take_scores(answer.events)
                self._take(answer.events, found)
            elif isinstance(answer, RequestFailed):
                error = RequestError(answer.field, answer.reason)
                self._fail(answer.request_id, error, found)
        return found

    def _take_cached(self, events: Events) -> None:
        if not len(events.cached_request_id):
            return
        ids, counts = events.cached_request_id.tolist(), events.cached_positions.tolist()
        for request_id, positions in zip(ids, counts, strict=True):
            if (collector := self._open.get(request_id)) is not None:
                collector.cached_tokens = positions

    def _take(self, events: Events, found: Delivered) -> None:
        columns = (events.token, events.depth, events.logprob, events.rank, events.finish)
        rows = zip(events.request_id.tolist(), *(c.tolist() for c in columns), strict=True)
        for i, (request_id, token, depth, logprob, rank, finish) in enumerate(rows):
            collector = self._open.get(request_id)
            if collector is None:
                continue  # aborted or stopped; what the ticks in flight still gave is dropped
            if finish == ERROR:
                text = events.errors.get(request_id, "the engine failed on this request")
                constraint = collector.constraint
                text = constraint.error or text if constraint is not None else text
                self._fail(request_id, RequestError("request", text), found)
                continue
            if finish == ABORT and collector.constraint is not None:
                # A grammar that ends where no token can end the answer.
                finish = STOP if collector.constraint.complete else ABORT
            if events.drafts is not None:
                collector.take_draft(int(events.drafts[0, i]), int(events.drafts[1, i]))
            wanted = collector.request.num_logprobs
            others = _alternatives(events.top_ids, events.top_logprobs, i, wanted)
            try:
                stop = collector.take(token, depth, logprob, rank, finish, others)
            except Exception as error:  # a user's tokenizer; the other requests go on
                reason = f"the tokenizer failed on token id {token} ({error!r})"
                self._fail(request_id, RequestError("text", reason), found)
                stop = finish == RUNNING
            found.touched.append(collector)
            if stop:
                found.stopped.append(request_id)
            if collector.done:
                self._open.pop(request_id, None)
            elif collector.constraint is not None:
                found.grown.append((collector, token))

    def _take_scores(self, events: Events) -> None:
        for i, request_id in enumerate(events.score_request_id.tolist()):
            collector = self._open.get(request_id)
            if collector is None:
                continue
            wanted = collector.request.prompt_logprobs
            if wanted is None:
                wanted = collector.request.num_logprobs
            collector.take_score(
                int(events.score_position[i]),
                float(events.score_logprob[i]),
                int(events.score_rank[i]),
                int(events.score_depth[i]),
                _alternatives(events.score_top_ids, events.score_top_logprobs, i, wanted),
            )

    def _fail(self, request_id: int, error: RequestError, found: Delivered) -> None:
        collector = self._open.pop(request_id, None)
        if collector is not None:
            collector.fail(error)
            found.touched.append(collector)


def _alternatives(ids: I64 | None, logprobs: F32 | None, row: int, wanted: int) -> Alternatives:
    if ids is None or logprobs is None or wanted <= 0:
        return ()
    pairs = zip(ids[row, :wanted].tolist(), logprobs[row, :wanted].tolist(), strict=True)
    return [(token, value) for token, value in pairs if token >= 0]
