"""Sends messages to a stage from a thread of its own, so that no event loop waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading

from rlt_core.contract.errors import StageError
from rlt_core.stage.client import Client
from rlt_core.stage.messages import Request


class Sender:
    """Messages leave in the order in which they were given."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._messages: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rlt-stage-sender", daemon=True)
        self._thread.start()

    def send(self, message: Request) -> None:
        """Queues a message. One to a stage that has ended is lost: its reader finds that out."""
        self._messages.put(message)

    def end(self) -> None:
        """Ends the thread once everything is sent."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._messages.get()) is not None:
            with contextlib.suppress(StageError):
                self._client.send(message)
