"""The page at `/`: the files of the folder page/, as they are."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)
FOLDER = "/page/"
KEY_FORM = "key_form.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_COMMON = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Nothing inline and nothing from elsewhere: a text that got in as HTML could load and run nothing.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    + _COMMON
)
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file and what it is sent with."""

    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """The file, or a 304 for a browser that has it. Browsers ask each time: a new version is
        used at once, and a key that no longer holds opens nothing that was kept."""
        headers = {
            **_HEADERS,
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "private, no-cache",
            "ETag": self.etag,
        }
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, 200, headers, self.media_type)


@router.get("/")
async def page(request: Request) -> Response:
    """The page itself."""
    return page_files()["index.html"].response(request)


@router.get(FOLDER + "{name}")
async def part(name: str, request: Request) -> Response:
    """What the page loads: scripts, styles, its icon."""
    file = page_files().get(name)
    if file is None or name.endswith(".html"):
        raise HTTPException(404, "the page has no such file")
    return file.response(request)


@cache
def page_files() -> dict[str, PageFile]:
    """By name; read once."""
    folder = resources.files("rlt_core.server").joinpath("page")
    return {
        each.name: _read(each.name, each.read_bytes())
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in _TYPES
    }


def key_form(headers: dict[str, str]) -> Response:
    """The 401 that asks a browser for a key. It may load nothing, for everything else needs the
    key, so that its script and its style are inside; its policy names them by their hashes."""
    text = page_files()[KEY_FORM].content.decode()
    policy = (
        f"default-src 'none'; script-src {_hashes(text, 'script')}; "
        f"style-src {_hashes(text, 'style')}; img-src data:; connect-src 'self'; {_COMMON}"
    )
    sent = {**_HEADERS, **headers, "Content-Security-Policy": policy, "Cache-Control": "no-store"}
    return Response(text, 401, sent, _TYPES["html"])


def _hashes(text: str, tag: str) -> str:
    found = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return " ".join(f"'sha256-{_digest(inner.encode())}'" for inner in found)


def _read(name: str, content: bytes) -> PageFile:
    return PageFile(content, _TYPES[name.rpartition(".")[2]], f'"{_digest(content)[:24]}"')


def _digest(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()
