"""Brings a stage's answers to the requests that wait for them, whatever thread they wait in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from rlt_core.api.collector import Collector
from rlt_core.api.mask_maker import MaskMaker
from rlt_core.api.router import Router
from rlt_core.contract.errors import StageError
from rlt_core.stage.client import Client
from rlt_core.stage.messages import Abort, AddRequests

WAIT_S = 0.1


class Dispatcher:
    """One of the waiting threads reads the stage's answers for all of them; the others sleep.

    A stage that ends raises its StageError in every waiting thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._router = Router()
        self._masks = MaskMaker(client.send)
        self._changed = threading.Condition()
        self._reading = False

    def new_ids(self, count: int) -> range:
        """Request ids never used before."""
        with self._changed:
            return self._router.new_ids(count)

    def submit(self, collectors: Sequence[Collector]) -> None:
        """Sends requests, in this order, in one message."""
        if not collectors:
            return
        with self._changed:
            self._router.add(collectors)
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
            self._router.drop(collectors)

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
        found = self._router.deliver(answers)
        if found.stopped:
            self._client.send(Abort(request_ids=found.stopped))
        self._masks.put(found.grown)
