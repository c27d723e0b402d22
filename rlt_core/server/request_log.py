"""Gives every request an id, a line in the access log and, if all else fails, an answer."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from starlette.datastructures import MutableHeaders

from rlt_core.server import engine
from rlt_core.server.asgi import ASGIApp, Message, Receive, Scope, Send, header_values
from rlt_core.server.client_limits import ClientGone
from rlt_core.server.errors import internal_error
from rlt_core.server.key_guard import OPEN_PATHS
from rlt_core.server.logs import log_fault, log_request
from rlt_core.server.metrics import ServerMetrics
from rlt_core.server.tracing import Tracer

CLIENT_GONE = 499
_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestLog:
    """The outermost ASGI middleware.

    A request's id is its X-Request-Id where that is sane, else a new one; the answer carries it.
    Routes add fields to the line with `context.note`.
    """

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, tracer: Tracer, log_prompts: bool
    ) -> None:
        self._app, self._metrics, self._tracer = app, metrics, tracer
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, fields = _request_id(scope), dict[str, Any]()
        scope.setdefault("state", {}).update(request_id=request_id, log=fields)
        began, answer = time.perf_counter(), Answer(send, request_id)
        with self._tracer.span(scope, request_id) as span:
            try:
                await self._app(scope, receive, answer.send)
            except Exception as error:
                await self._failed(error, request_id, answer, scope, receive)
            finally:
                status = answer.status or CLIENT_GONE
                route = _route(scope)
                self._metrics.answered(route, _method(scope), status)
                line = _line(scope, request_id, status, time.perf_counter() - began)
                if not _is_quiet(scope["path"], status):
                    log_request({**line, "bytes": answer.num_bytes, **fields})
                span.ended(route, status, fields)

    async def _failed(
        self, error: Exception, request_id: str, answer: Answer, scope: Scope, receive: Receive
    ) -> None:
        if _is_gone(error):
            return
        log_fault(error, request_id, with_message=self._log_prompts)
        if not answer.status:
            await internal_error(request_id).response(scope, receive, answer.send)


class Answer:
    """What is sent back: its status (0: nothing yet) and the bytes of its body."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id = send, request_id
        self.status = self.num_bytes = 0

    async def send(self, message: Message) -> None:
        """Passes a message on; the first one gets the id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        else:
            self.num_bytes += len(message.get("body", b""))
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given = header_values(scope, b"x-request-id")
    if len(given) == 1 and _SANE_ID.fullmatch(given[0]):
        return given[0].decode("ascii")
    return uuid.uuid4().hex


def _line(scope: Scope, request_id: str, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "request_id": request_id,
        "client": client[0] if client else None,
        "method": scope["method"],
        # Without the query, in which somebody may have put a key.
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 6),
    }


def _is_quiet(path: str, status: int) -> bool:
    """Whether it is asked for every few seconds, by probes and by the page that is open."""
    return path in OPEN_PATHS or (path == engine.PATH and status == 200)


def _route(scope: Scope) -> str:
    """The route's own path: there are few of these, and of made-up paths any number."""
    return str(getattr(scope.get("route"), "path", "other"))


def _method(scope: Scope) -> str:
    known = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"


def _is_gone(error: BaseException) -> bool:
    """Whether the client left, alone or in a group of a task group."""
    parts = getattr(error, "exceptions", None)
    if parts:
        return all(_is_gone(part) for part in parts)
    return isinstance(error, ClientGone)
