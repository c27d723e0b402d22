"""Brings a stage's answers to the requests that wait for them, whatever thread they wait in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from rlt_core.api.collector import Alternatives, Collector
from rlt_core.contract.errors import RequestError, StageError
from rlt_core.runtime.batch import F32, I64
from rlt_core.schedule.request import ERROR, RUNNING, Events
from rlt_core.stage.client import Client
from rlt_core.stage.messages import Abort, AddRequests, Answer, RequestFailed, Tick

WAIT_S = 0.1


class Dispatcher:
    """One of the waiting threads reads the stage's answers for all of them; the others sleep.

    A stage that ends raises its StageError in every waiting thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[int, Collector] = {}
        self._changed = threading.Condition()
        self._reading = False
        self._next_id = 0

    def new_ids(self, count: int) -> range:
        """Request ids never used before."""
        with self._changed:
            first, self._next_id = self._next_id, self._next_id + count
        return range(first, first + count)

    def submit(self, collectors: Sequence[Collector]) -> None:
        """Sends requests, in this order, in one message."""
        if not collectors:
            return
        with self._changed:
            self._waiting.update({c.request.request_id: c for c in collectors})
        try:
            self._client.send(AddRequests(requests=[c.request for c in collectors]))
        except StageError:
            self.drop(collectors)
            raise

    def wait(self, ready: Callable[[], bool], on_wake: Callable[[], None] | None = None) -> None:
        """Returns once `ready()`; StageError when the stage ends before. `on_wake` is called
        now and then (progress)."""
        with self._changed:
            while not ready():
                if self._reading:
                    self._changed.wait(WAIT_S)
                else:
                    self._read()
                if on_wake is not None:
                    on_wake()

    def give_up(self, collectors: Iterable[Collector]) -> None:
        """Aborts requests that nobody waits for any more; done ones are left alone."""
        running = [c for c in collectors if not c.done]
        self.drop(running)
        if running:
            with contextlib.suppress(StageError):  # a stage that has ended has given up too
                self._client.send(Abort(request_ids=[c.request.request_id for c in running]))

    def drop(self, collectors: Iterable[Collector]) -> None:
        """Forgets requests without telling the stage."""
        with self._changed:
            for collector in collectors:
                self._waiting.pop(collector.request.request_id, None)

    def _read(self) -> None:
        """Reads once, with the lock released while it blocks."""
        self._reading = True
        self._changed.release()
        try:
            answers = self._client.receive(WAIT_S)
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        stopped: list[int] = []
        for answer in answers:
            if isinstance(answer, Tick):
                stopped += self._take(answer.events)
            elif isinstance(answer, RequestFailed):
                self._fail(answer.request_id, RequestError(answer.field, answer.reason))
        if stopped:
            self._client.send(Abort(request_ids=stopped))

    def _take(self, events: Events) -> list[int]:
        self._take_scores(events)
        stopped = []
        columns = (events.token, events.depth, events.logprob, events.rank, events.finish)
        rows = zip(events.request_id.tolist(), *(c.tolist() for c in columns), strict=True)
        for i, (request_id, token, depth, logprob, rank, finish) in enumerate(rows):
            collector = self._waiting.get(request_id)
            if collector is None:
                continue  # aborted or stopped; what the ticks in flight still gave is dropped
            if finish == ERROR:
                text = events.errors.get(request_id, "the engine failed on this request")
                self._fail(request_id, RequestError("request", text))
                continue
            wanted = collector.request.num_logprobs
            others = _alternatives(events.top_ids, events.top_logprobs, i, wanted)
            try:
                stop = collector.take(token, depth, logprob, rank, finish, others)
            except Exception as error:  # a user's tokenizer; the other requests go on
                reason = f"the tokenizer failed on token id {token} ({error!r})"
                self._fail(request_id, RequestError("text", reason))
                stop = finish == RUNNING
            if stop:
                stopped.append(request_id)
            if collector.done:
                self._waiting.pop(request_id, None)
        return stopped

    def _take_scores(self, events: Events) -> None:
        for i, request_id in enumerate(events.score_request_id.tolist()):
            collector = self._waiting.get(request_id)
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

    def _fail(self, request_id: int, error: RequestError) -> None:
        collector = self._waiting.pop(request_id, None)
        if collector is not None:
            collector.fail(error)


def _alternatives(ids: I64 | None, logprobs: F32 | None, row: int, wanted: int) -> Alternatives:
    if ids is None or logprobs is None or wanted <= 0:
        return ()
    pairs = zip(ids[row, :wanted].tolist(), logprobs[row, :wanted].tolist(), strict=True)
    return [(token, value) for token, value in pairs if token >= 0]
