"""Admission and end of the requests of an AsyncLLM, on its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from rlt_core.api.access import ModelAccess
from rlt_core.api.batch import Batch, Entry
from rlt_core.api.collector import Collector
from rlt_core.api.event_loop import check_loop, tell
from rlt_core.api.inbox import Inbox
from rlt_core.api.observer import Observer
from rlt_core.api.open_requests import Arrival, OpenRequests
from rlt_core.api.outputs import Increment
from rlt_core.api.prompts import read_prompt
from rlt_core.api.queue_bound import QueueBound
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.scoring import Scoring
from rlt_core.contract.errors import BusyError, DeadlineError, RequestError, RltError, StageError
from rlt_core.stage.messages import StageReport

NUM_TEXT_THREADS = 4
_CLOSED = "the server is shutting down and takes no more requests"
T = TypeVar("T")


class AsyncRequests:
    """Takes requests up to a bound, reads their text in threads, tells their streams.

    Made on the event loop that its streams run on. `closed` refuses new requests. ended: nothing
    of it runs any more.
    """

    def __init__(self, access: ModelAccess, max_waiting: int | None, observer: Observer) -> None:
        self._access, self._max_waiting, self.observer = access, max_waiting, observer
        self._loop = asyncio.get_running_loop()
        self._text_threads = ThreadPoolExecutor(NUM_TEXT_THREADS, "rlt-text")
        self._builder: RequestBuilder | None = None
        self._live: set[Inbox] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.open = OpenRequests(self._loop, self._arrived)
        self.bound = QueueBound(0, 0)
        self.closed = self.ended = False

    @property
    def num_open(self) -> int:
        """Answers in work, those that wait included."""
        return sum(inbox.num_answers for inbox in self._live)

    def serve(self, report: StageReport) -> None:
        """A stage serves; called in the keeper's thread."""
        self._builder = RequestBuilder(report, self._access.defaults)
        waiting = 4 * report.num_slots if self._max_waiting is None else self._max_waiting
        self.bound = QueueBound(report.num_slots, waiting)

    def admit(self, num_answers: int, deadline: float | None) -> Inbox:
        """Room for a request's answers, until it ends or these seconds are over. BusyError,
        StageError."""
        check_loop(self._loop)
        try:
            if self.closed:
                raise StageError(_CLOSED)
            if self._builder is None:
                raise StageError("the stage is starting")
            self.bound.check(self.num_open, num_answers)
        except BusyError:
            self.observer.refused("busy")
            raise
        except StageError:
            self.observer.refused("unready")
            raise
        inbox = Inbox(num_answers)
        self._live.add(inbox)
        self._idle.clear()
        if deadline is not None:
            late = DeadlineError(deadline)
            inbox.timer = self._loop.call_later(deadline, self._expire, inbox, late)
        return inbox

    @contextmanager
    def hold(self, num_answers: int, deadline: float | None) -> Iterator[Inbox]:
        """What `admit` gives, aborted at the end of the block where it still runs."""
        inbox = self.admit(num_answers, deadline)
        try:
            yield inbox
        except BaseException as error:
            self.leave(inbox, error)
            raise
        self.leave(inbox, None)

    async def send(self, inbox: Inbox, prompt: object, params: SamplingParams) -> Batch:
        """Reads a prompt and sends its request; the errors of `AsyncStream.open`."""
        batch = await self._read(inbox, lambda: self._batch(inbox, prompt, params))
        self.observer.sent(len(batch.entries[0].tokens))
        return batch

    async def send_score(
        self, inbox: Inbox, text: object, prompt_len: int, params: SamplingParams
    ) -> Scoring:
        """Reads a text and sends the request that scores it."""

        def scoring() -> Scoring:
            (request_id,) = self.open.new_ids(1)
            tokenizer = self._access.tokenizer
            made = Scoring(text, prompt_len, params, self._requests, tokenizer, request_id)
            self.open.submit(inbox, made.collectors)
            return made

        return await self._read(inbox, scoring)

    async def off_loop(self, call: Callable[[], T]) -> T:
        """Runs something that handles text in a thread; StageError after the end."""
        if self.ended:
            raise StageError(_CLOSED)
        return await self._loop.run_in_executor(self._text_threads, call)

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text prompt."""
        builder, tokenizer = self._requests, self._access.tokenizer
        found = await self.off_loop(lambda: read_prompt(text, builder, tokenizer).tokens)
        return [int(token) for token in found]

    def leave(self, inbox: Inbox, error: BaseException | None) -> None:
        """Aborts a request in whatever phase. error: what ended the one who waited for it, if
        anything did."""
        if isinstance(error, GeneratorExit):  # a coroutine that nobody holds any more
            self.abandon(inbox)
        else:
            self._give_up(inbox)

    def abandon(self, inbox: Inbox) -> None:
        """Aborts a request that nobody holds any more. A garbage collection calls this, anywhere,
        inside a lock too: so it takes none, and the loop does the rest."""
        tell(self._loop, self._give_up, inbox)

    def reading(self) -> AbstractContextManager[object]:
        """Held while collectors that may still be written to are read."""
        return self.open.lock

    async def drain(self, seconds: float) -> None:
        """Takes no more requests, waits for those in work, then ends them with a StageError."""
        self.closed = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            self.end_all()

    def end_all(self) -> None:
        """Ends every request with a StageError."""
        for inbox in list(self._live):
            self._fail(inbox, StageError("the server has shut down"), "abort")

    def shut(self) -> None:
        """Ends the text threads, once they have read what waits for them: who waits for that finds
        that the request has failed."""
        self.closed = self.ended = True
        self._text_threads.shutdown(wait=False)

    @property
    def _requests(self) -> RequestBuilder:
        if self._builder is None:
            raise StageError("the stage is starting")
        return self._builder

    def _batch(self, inbox: Inbox, prompt: object, params: SamplingParams) -> Batch:
        builder = self._requests
        ids = self.open.new_ids(params.n)
        entry = Entry(prompt, params, builder, self._access.tokenizer, ids)
        if entry.error is not None:
            raise entry.error
        self.open.submit(inbox, entry.collectors)
        return Batch([entry], builder)

    async def _read(self, inbox: Inbox, call: Callable[[], T]) -> T:
        try:
            made = await self.off_loop(call)
        except RltError as error:
            self.observer.refused("invalid" if isinstance(error, RequestError) else "unready")
            self._live.discard(inbox)
            self._end(inbox, None)
            raise
        except BaseException as error:
            self.leave(inbox, error)
            raise
        if isinstance(inbox.error, DeadlineError):
            raise inbox.error
        return made

    def _arrived(self, arrivals: list[Arrival]) -> None:
        for inbox, news, num_ended, error in arrivals:
            if inbox.ended:
                continue
            self._count(inbox, news)
            inbox.put(news, num_ended, error)
            if error is not None:
                self.open.give_up(inbox)
                self._end(inbox, "error")
            elif inbox.ended:
                self._end(inbox, *_reasons(inbox.collectors))

    def _count(self, inbox: Inbox, news: Sequence[Increment]) -> None:
        times, now = inbox.times, time.monotonic()
        for increment in news:
            if increment.token_ids:
                before = times.last_tokens.get(increment.index)
                seconds = None if before is None else now - before
                times.first_token = times.first_token or now
                times.last_tokens[increment.index] = now
                times.num_tokens += len(increment.token_ids)
                self.observer.grew(times, increment, seconds)

    def _give_up(self, inbox: Inbox) -> None:
        self.open.give_up(inbox)
        self._end(inbox, "abort")

    def _expire(self, inbox: Inbox, error: DeadlineError) -> None:
        if not inbox.ended:
            # A reader finds what has arrived, then the error.
            self._fail(inbox, error, "deadline")

    def _fail(self, inbox: Inbox, error: RltError, reason: str) -> None:
        inbox.fail(error)
        self.open.give_up(inbox)
        self._end(inbox, reason)

    def _end(self, inbox: Inbox, *reasons: str | None) -> None:
        """A request ended; only the first call for it counts."""
        if inbox.timer is not None:
            inbox.timer.cancel()
        if inbox in self._live:
            self._live.remove(inbox)
            inbox.times.ended = time.monotonic()
            self.bound.ended()
            self.observer.ended(inbox.times, [reason for reason in reasons if reason])
            inbox.wake()
        if not self._live:
            self._idle.set()


def _reasons(collectors: Sequence[Collector]) -> list[str]:
    return [collector.finish_reason or "stop" for collector in collectors]
