"""Sends messages to a stage from a thread of its own, so that no event loop waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from rlt_core.contract.errors import StageError
from rlt_core.stage.client import Client
from rlt_core.stage.messages import Abort, AddRequests, Masks, Request, RequestFailed

Failed = Callable[[list[RequestFailed]], object]


class Sender:
    """Messages leave in the order in which they were given."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._messages: queue.SimpleQueue[tuple[Request, Failed | None] | None]
        self._messages = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rlt-stage-sender", daemon=True)
        self._thread.start()

    def send(self, message: Request, failed: Failed | None = None) -> None:
        """Queues a message. One to a stage that has ended is lost: its reader finds that out.

        failed: called in the sender's thread with the message's requests if it cannot be written,
        whatever the error. They fail alone: messages after it are sent.
        """
        self._messages.put((message, failed))

    def end(self) -> None:
        """Ends the thread once everything is sent."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (given := self._messages.get()) is not None:
            message, failed = given
            with contextlib.suppress(StageError):
                try:
                    self._client.send(message)
                except StageError:
                    raise
                except Exception as error:  # it cannot be written; the other requests go on
                    if failed is not None:
                        self._fail(_request_ids(message), failed, error)

    def _fail(self, ids: list[int], failed: Failed, error: Exception) -> None:
        reason = (
            f"it could not be sent to the stage ({type(error).__name__}: {error})\n"
            "This is a fault of rlt; other requests go on"
        )
        failed([RequestFailed(request_id=i, field="request", reason=reason) for i in ids])
        # The stage would wait for ever for masks that never come.
        self._client.send(Abort(request_ids=ids))


def _request_ids(message: Request) -> list[int]:
    if isinstance(message, AddRequests):
        return [request.request_id for request in message.requests]
    if isinstance(message, Masks):
        return [int(request_id) for request_id in message.request_id]
    return []
