"""The requests in work of an AsyncLLM, between the event loop and the thread that reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from rlt_core.api.collector import Collector
from rlt_core.api.event_loop import tell
from rlt_core.api.inbox import Inbox
from rlt_core.api.mask_maker import MaskMaker
from rlt_core.api.outputs import Increment
from rlt_core.api.router import Router
from rlt_core.api.sender import Failed
from rlt_core.contract.errors import RltError, StageError
from rlt_core.stage.messages import Abort, AddRequests, Answer, Request

Send = Callable[[Request, Failed], None]
Arrival = tuple[Inbox, list[Increment], int, RltError | None]


class OpenRequests:
    """Any thread may call; one lock keeps an abort behind the request that it ends.

    arrived: called on the event loop with what one delivery brought. lock: held while collectors
    are written to.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, arrived: Callable[[list[Arrival]], None]
    ) -> None:
        self._loop, self._arrived = loop, arrived
        self.lock = threading.Lock()
        self._router, self._masks = Router(), MaskMaker(self._forward)
        self._inboxes: dict[int, Inbox] = {}
        self._send: Send | None = None
        self._why_not = "the stage is starting"

    def new_ids(self, count: int) -> range:
        """Request ids never used before."""
        with self.lock:
            return self._router.new_ids(count)

    def connect(self, send: Send) -> None:
        """From now on requests go this way; `send` must neither block nor raise: it tells its
        second argument, in another thread, which requests could not be sent."""
        with self.lock:
            self._send = send

    def disconnect(self, why: str) -> None:
        """There is no stage: open requests fail, and later ones are refused, with a StageError."""
        with self.lock:
            self._send, self._why_not = None, why
            self._router.drop_all()
            inboxes = dict.fromkeys(self._inboxes.values())
            self._inboxes.clear()
        self._post([(inbox, [], 0, StageError(why)) for inbox in inboxes])

    def submit(self, inbox: Inbox, collectors: Sequence[Collector]) -> None:
        """Sends a request, unless it was given up meanwhile; StageError without a stage."""
        with self.lock:
            if inbox.given_up:
                return
            if self._send is None:
                raise StageError(self._why_not)
            inbox.collectors = collectors
            self._router.add(collectors)
            self._inboxes.update((c.request.request_id, inbox) for c in collectors)
            self._send(AddRequests(requests=[c.request for c in collectors]), self.deliver)

    def give_up(self, inbox: Inbox) -> None:
        """Aborts what still runs of a request; what comes of it later is thrown away."""
        with self.lock:
            inbox.given_up = True
            ids = [c.request.request_id for c in inbox.collectors]
            running = [i for i in ids if self._inboxes.pop(i, None) is not None]
            self._router.drop(inbox.collectors)
            if running and self._send is not None:
                self._send(Abort(request_ids=running), self.deliver)

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Brings a stage's answers to their streams."""
        with self.lock:
            found = self._router.deliver(answers)
            if found.stopped and self._send is not None:
                self._send(Abort(request_ids=found.stopped), self.deliver)
            arrivals = [self._arrival(c) for c in dict.fromkeys(found.touched)]
        self._masks.put(found.grown)
        self._post(arrivals)

    def _forward(self, message: Request) -> None:
        """Sends masks to the stage, if one is there; another one ignores those of the last."""
        with self.lock:
            if self._send is not None:
                self._send(message, self.deliver)

    def _arrival(self, collector: Collector) -> Arrival:
        request_id = collector.request.request_id
        inbox = self._inboxes[request_id]
        if collector.done:
            del self._inboxes[request_id]
        news = [collector.news()] if collector.error is None and collector.has_news else []
        return inbox, news, int(collector.done), collector.error

    def _post(self, arrivals: list[Arrival]) -> None:
        if arrivals:
            tell(self._loop, self._arrived, arrivals)
