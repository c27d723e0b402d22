"""Lets nobody in without a key, except to ask after the server's health."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from rlt_core.server.asgi import ASGIApp, Message, Receive, Scope, Send, header_values
from rlt_core.server.errors import ApiError
from rlt_core.server.keys import ApiKeys
from rlt_core.server.page_files import key_form
from rlt_core.server.page_pass import PagePass

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="rlt"'}


class KeyGuard:
    """ASGI middleware. It stands before the routes, so that one added later is guarded too, and
    what exists cannot be told from what does not."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app, self._keys, self._pass = app, keys, PagePass()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._may_pass(scope):
            await self._app(scope, receive, self._with_pass(scope, send))
        else:
            await _refusal(scope)(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        given = header_values(scope, b"authorization")
        if given:
            # A wrong key is wrong, whatever cookie comes with it: the form tries keys this way.
            return self._keys.accepts(given)
        return self._pass.admits(scope)

    def _with_pass(self, scope: Scope, send: Send) -> Send:
        """The page, asked for with a key, comes with the cookie for its files."""
        is_entry = scope["type"] == "http" and scope["path"] == "/" and self._keys
        if not is_entry or not header_values(scope, b"authorization"):
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("Set-Cookie", self._pass.header(scope))
            await send(message)

        return sending


def _refusal(scope: Scope) -> Response:
    """A 401; for a browser that asks for the page, one with a form that asks for the key."""
    if scope["path"] == "/" and any(
        b"text/html" in value for value in header_values(scope, b"accept")
    ):
        return key_form(_CHALLENGE)
    message = "an API key is needed: the header Authorization: Bearer KEY"
    return ApiError(401, message, code="invalid_api_key", headers=_CHALLENGE).response
