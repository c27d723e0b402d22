"""A request of an AsyncLLM whose answers are read while they grow."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from rlt_core.api.inbox import Inbox, StreamTimes
from rlt_core.api.outputs import Increment, RequestOutput
from rlt_core.api.prompts import Prompt
from rlt_core.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rlt_core.api.async_requests import AsyncRequests
    from rlt_core.api.batch import Batch


class AsyncStream:
    """Iterate for increments of all n answers; `output` is the whole so far.

    The request is read and sent by `open`, or by the first step of the iteration. `close`, leaving
    an `async with`, a cancelled task that waits here, or the last reference gone abort it,
    whatever it is doing. Of one task at a time.
    """

    def __init__(
        self,
        requests: AsyncRequests,
        prompt: Prompt,
        params: SamplingParams,
        deadline: float | None,
    ) -> None:
        self._requests, self._prompt, self.params = requests, prompt, params
        self._deadline = deadline
        self._inbox: Inbox | None = None
        self._batch: Batch | None = None

    async def open(self) -> AsyncStream:
        """Reads the prompt and sends the request; itself.

        RequestError when it is refused, BusyError when the queue is full, StageError while no
        stage serves, DeadlineError.
        """
        if self._inbox is None:
            inbox = self._inbox = self._requests.admit(self.params.n, self._deadline)
            # Of the inbox alone: a bound method of this object would keep it alive.
            self._dropped = weakref.finalize(self, self._requests.abandon, inbox)
            try:
                self._batch = await self._requests.send(inbox, self._prompt, self.params)
            except BaseException as error:
                self._leave(error)
                raise
        return self

    def check_whole(self, num_answers: int) -> None:
        """RequestError where so many answers, of this stream and others with it, never fit the
        queue: who opened some of them would be told to come again, for ever."""
        self._requests.bound.check_whole(num_answers)

    @property
    def times(self) -> StreamTimes:
        """When the request came, grew and ended."""
        assert self._inbox is not None, "the stream is not open"
        return self._inbox.times

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model reads it, once the stream is open."""
        return self._opened.entries[0].tokens

    @property
    def prompt_text(self) -> str | None:
        """The prompt's text, of a conversation what its template wrote; None for token ids."""
        return self._opened.entries[0].text

    @property
    def output(self) -> RequestOutput:
        """The answers so far, once the stream is open, as `generate` gives them."""
        batch = self._opened
        with self._requests.reading():
            (output,) = batch.outputs()
            output.finished = batch.done
        return output

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Increment:
        await self.open()
        inbox = self._inbox
        assert inbox is not None, "open gives it"
        if inbox.is_read:  # one of the two would wait for ever
            raise RuntimeError("another task reads this stream: a stream is of one task at a time")
        try:
            increment = await inbox.next()
            if increment is None:
                raise StopAsyncIteration
            return increment
        except BaseException as error:
            self._leave(error)
            raise

    def close(self) -> None:
        """Aborts what still runs; may be called again."""
        # In a coroutine that nobody holds any more, a `finally` may call this.
        self._leave(sys.exc_info()[1])

    async def __aenter__(self) -> AsyncStream:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    @property
    def _opened(self) -> Batch:
        if self._batch is None:
            raise RuntimeError("the stream is not open: `await stream.open()` comes first")
        return self._batch

    def _leave(self, error: BaseException | None) -> None:
        if self._inbox is not None and self._dropped.detach() is not None:
            self._requests.leave(self._inbox, error)
