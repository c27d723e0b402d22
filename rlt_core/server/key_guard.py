"""Lets nobody in without a key, except to ask after the server's health."""

from __future__ import annotations

from importlib import resources

from starlette.responses import HTMLResponse, Response

from rlt_core.server.asgi import ASGIApp, Receive, Scope, Send, header_values
from rlt_core.server.errors import ApiError
from rlt_core.server.keys import ApiKeys

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="rlt"'}


class KeyGuard:
    """ASGI middleware. It stands before the routes, so that one added later is guarded too, and
    what exists cannot be told from what does not."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._may_pass(scope):
            await self._app(scope, receive, send)
        else:
            await _refusal(scope)(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if self._keys.accepts(header_values(scope, b"authorization")):
            return True
        return scope["path"] in OPEN_PATHS


def _refusal(scope: Scope) -> Response:
    """A 401; for a browser that asks for the page, one with a form that asks for the key."""
    if scope["path"] == "/" and any(
        b"text/html" in value for value in header_values(scope, b"accept")
    ):
        form = resources.files("rlt_core.server").joinpath("key_form.html").read_text("utf-8")
        return HTMLResponse(form, 401, _CHALLENGE)
    message = "an API key is needed: the header Authorization: Bearer KEY"
    return ApiError(401, message, code="invalid_api_key", headers=_CHALLENGE).response
