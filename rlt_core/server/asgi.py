"""Names for what ASGI passes around."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send", "header_values"]


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header; `name` in lower case."""
    return [value for key, value in scope["headers"] if key == name]
