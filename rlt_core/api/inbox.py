"""What arrives for one stream of a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlt_core.api.collector import Collector
from rlt_core.api.outputs import Increment
from rlt_core.contract.errors import RltError


@dataclass(slots=True, kw_only=True)
class StreamTimes:
    """When things happened to one request, in seconds of time.monotonic; 0.0: not yet.

    last_tokens: by answer. num_tokens: of all answers.
    """

    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    last_tokens: dict[int, float] = field(default_factory=dict)
    num_tokens: int = 0
    ended: float = 0.0


class Inbox:
    """The event loop's side of one request: increments that nobody has read, and its end.

    `collectors` are written by the thread that reads the stage; everything else, and they too once
    they are done, belongs to the event loop. timer: of a deadline.
    """

    def __init__(self, num_answers: int) -> None:
        self.times = StreamTimes()
        self.num_answers = num_answers
        self.timer: asyncio.TimerHandle | None = None
        self.collectors: Sequence[Collector] = ()
        self.given_up = False
        self.error: RltError | None = None
        self._news: deque[Increment] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._num_running = num_answers

    @property
    def ended(self) -> bool:
        """Whether nothing more arrives."""
        return self.given_up or self.error is not None or self._num_running == 0

    def put(self, news: Sequence[Increment], num_ended: int, error: RltError | None) -> None:
        """Increments, answers that ended, and what stops all of them."""
        if self.ended:
            return
        self._news.extend(news)
        self._num_running -= num_ended
        self.error = error
        self.wake()

    def fail(self, error: RltError) -> None:
        """Ends the request; what has arrived can still be read."""
        self.put((), 0, error)

    @property
    def is_read(self) -> bool:
        """Whether somebody waits for the next increment."""
        return self._reader is not None

    async def next(self) -> Increment | None:
        """The next increment, None after the last. What failed is raised once all are read."""
        while not self._news:
            if self.error is not None:
                raise self.error
            if self.ended:
                return None
            await self._changed()
        return self._news.popleft()

    async def _changed(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake(self) -> None:
        """Lets the reader look again."""
        if self._reader is not None and not self._reader.done():
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody reads any more
                self._reader.set_result(None)
