"""Server-sent events, for as long as a client listens."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rlt_core.server.disconnect import while_connected
from rlt_core.server.errors import ApiError

DONE = b"data: [DONE]\n\n"


def event(model: BaseModel) -> bytes:
    """One event of a stream; fields that were not set are left out."""
    return b"data: " + model.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def failure(error: ApiError) -> bytes:
    """The event that ends a stream which failed."""
    return b"data: " + json.dumps(error.body).encode() + b"\n\n"


class EventStream(Response):
    """Sends events as they come. When the client goes, whatever the phase, the events' generator
    is closed at once, and with it the work behind it."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(Request(scope, receive), self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            await send(start)
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
