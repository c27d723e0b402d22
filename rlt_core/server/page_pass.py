"""A cookie that opens the page's files to a browser whose key was right."""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie

from rlt_core.server.asgi import Scope, header_values
from rlt_core.server.page_files import FOLDER


class PagePass:
    """Browsers fetch scripts and styles without the header that carries a key.

    The cookie opens those files and the page, and nothing that uses the model: cookies go to every
    port of a host, where others may read them, and come with requests that other pages make. Its
    value is drawn at start and says nothing of the key.
    """

    def __init__(self) -> None:
        self._value = secrets.token_urlsafe(32)

    def admits(self, scope: Scope) -> bool:
        """Whether this is a request for the page or its files, with the cookie."""
        if scope["method"] != "GET" or not is_page(scope["path"]):
            return False
        name, good = _name(scope), False
        for header in header_values(scope, b"cookie"):
            given = _cookie(header, name)
            good |= hmac.compare_digest(given.encode(), self._value.encode())
        return good

    def header(self, scope: Scope) -> str:
        """The value of Set-Cookie; the cookie goes when the browser is closed."""
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        return f"{_name(scope)}={self._value}; Path=/; HttpOnly; SameSite=Strict{secure}"


def is_page(path: str) -> bool:
    """Whether a path is the page's or one of its files'."""
    return path == "/" or path.startswith(FOLDER)


def _name(scope: Scope) -> str:
    """Of its own for each port, since all ports of a host share their cookies."""
    server = scope.get("server") or (None, None)
    return f"rlt_page_{server[1]}"


def _cookie(header: bytes, name: str) -> str:
    try:
        found = SimpleCookie(header.decode("latin-1")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
