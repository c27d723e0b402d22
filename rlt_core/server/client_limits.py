"""What one client may send, and how slowly it may send and read."""

from __future__ import annotations

import asyncio

from rlt_core.server.asgi import ASGIApp, Message, Receive, Scope, Send, header_values
from rlt_core.server.errors import ApiError
from rlt_core.server.settings import ServerSettings

LOGGED_BYTES = 4096


class ClientGone(Exception):
    """The client left, or does not take what it is sent."""


class ClientLimits:
    """ASGI middleware: reads the whole body, up to a size and within a time, before the
    application runs; gives up on a client that does not take its answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_headers(scope)
            body = await self._read(receive)
        except ApiError as error:
            # The rest of the request is not read, so the connection cannot serve another.
            error.headers["Connection"] = "close"
            await error.response(scope, receive, send)
            return
        if body is not None and self._settings.log_prompts:
            scope["state"]["log"]["body"] = body[:LOGGED_BYTES].decode("utf-8", "replace")
        if body is not None:
            await self._app(scope, _after(body, receive), self._timed(send))

    def _check_headers(self, scope: Scope) -> None:
        most = self._settings.max_header_bytes
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > most:
            raise ApiError(
                431, f"the headers are larger than {most} bytes", code="headers_too_large"
            )
        lengths = header_values(scope, b"content-length")
        if lengths and lengths[0].isdigit() and int(lengths[0]) > self._settings.max_body_bytes:
            raise self._too_large()

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None when the client left before it was whole."""
        seconds = self._settings.read_timeout_s
        try:
            return await asyncio.wait_for(self._read_all(receive), seconds)
        except asyncio.TimeoutError:
            message = f"the request was not whole within {seconds:g} s"
            raise ApiError(408, message, code="slow_request") from None

    async def _read_all(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._settings.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        most = self._settings.max_body_bytes
        return ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")

    def _timed(self, send: Send) -> Send:
        seconds = self._settings.write_timeout_s

        async def timed(message: Message) -> None:
            # Not by wait_for: it makes a task for each message, and before Python 3.12 it may
            # lose the cancellation of a client that leaves.
            limit = TimeLimit(seconds)
            try:
                await send(message)
            except asyncio.CancelledError:
                if limit.passed:
                    raise ClientGone(f"it took nothing for {seconds:g} s") from None
                raise
            finally:
                limit.end()

        return timed


class TimeLimit:
    """Cancels the task that made it after so many seconds, unless it is ended before."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    def end(self) -> None:
        """It was met."""
        self._timer.cancel()

    def _pass(self) -> None:
        self.passed = True
        if self._task is not None:
            self._task.cancel()


def _after(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what the server says: that the client left."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay
