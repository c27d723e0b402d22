"""What `rlt serve` is told, read once and checked completely."""

from __future__ import annotations

import ipaddress
import math
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rlt_core.contract.errors import OptionError, RltError
from rlt_core.server.keys import ApiKeys

MIB = 1 << 20
# As browsers write it: scheme, host and a port that is not the scheme's own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The frame of the HTTP application.

    host, port: where it listens; 127.0.0.1 is this machine alone. keys: who may use it; without
    any, everybody may who reaches it. served_names: what the model is called in requests; the
    first is what answers say. cors_origins: web pages of other origins that may use it.
    max_body_bytes, max_header_bytes: of one request. max_prompts: prompts of one request.
    max_tokens: tokens that one answer may ask for; None: what the model can. request_timeout_s:
    seconds of one request, queue included; None: no limit. read_timeout_s: a client must have sent
    its whole request by then; write_timeout_s: it must take what it is sent by then. drain_s: what
    requests in work get at the end. chat_template: another than the checkpoint's, as a file, or one
    of the checkpoint's by name. tool_parser: how the model writes tool calls, by name; None: as its
    chat template does. log_prompts: the beginnings of bodies, and messages of faults, which
    may hold parts of them, go into logs. otlp_endpoint: where spans are sent, if anywhere.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: ApiKeys = field(default_factory=ApiKeys)
    allow_unauthenticated: bool = False
    served_names: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * MIB
    max_header_bytes: int = 32 << 10
    max_prompts: int = 128
    max_tokens: int | None = None
    request_timeout_s: float | None = 600.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    drain_s: float = 30.0
    chat_template: str | None = None
    tool_parser: str | None = None
    log_prompts: bool = False
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError("--port", self.port, "it must be 0 to 65535")
        for option, value in self._positive().items():
            if value <= 0:
                raise OptionError(option, value, "it must be above 0")
        for option, seconds in self._seconds().items():
            check_seconds(option, seconds)
        if self.request_timeout_s is not None:
            check_seconds("--request-timeout", self.request_timeout_s, none=True)
        if not (0 <= self.drain_s < math.inf):
            reason = "it must be a finite number, 0 or more"
            raise OptionError("--drain-timeout", self.drain_s, reason)
        self._check_texts()
        self._check_public()
        self._check_tls()

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach it."""
        return not _is_loopback(self.host)

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        scheme = "https" if self.ssl_certfile else "http"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def _positive(self) -> dict[str, int]:
        return {
            "--max-body-bytes": self.max_body_bytes,
            "--max-header-bytes": self.max_header_bytes,
            "--max-prompts": self.max_prompts,
            "--max-tokens": 1 if self.max_tokens is None else self.max_tokens,
        }

    def _seconds(self) -> dict[str, float]:
        return {"--read-timeout": self.read_timeout_s, "--write-timeout": self.write_timeout_s}

    def _check_texts(self) -> None:
        """The texts that nothing else reads before the first request."""
        for name in self.served_names:
            if not name or name != name.strip():
                reason = "it must be what requests say as `model`: a name, as my-model or org/model"
                raise OptionError("--served-model-name", name, reason)
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                reason = (
                    "it must be scheme://host or scheme://host:port in lower case, without a path, "
                    "as https://their.example; or *, every page"
                )
                raise OptionError("--cors-origin", origin, reason)
        if self.otlp_endpoint is not None and not _is_url(self.otlp_endpoint):
            reason = "it must be a URL, as http://127.0.0.1:4318/v1/traces"
            raise OptionError("--otlp-endpoint", self.otlp_endpoint, reason)

    def _check_public(self) -> None:
        if self.is_public and not self.keys and not self.allow_unauthenticated:
            raise RltError(
                f"--host {self.host} can be reached from other machines, and there is no API key\n"
                "Fix: --api-key-file FILE (or RLT_API_KEYS), --host 127.0.0.1, or, to let "
                "everybody in, --allow-unauthenticated"
            )

    def _check_tls(self) -> None:
        files = {"--ssl-certfile": self.ssl_certfile, "--ssl-keyfile": self.ssl_keyfile}
        for option, path in files.items():
            if path is not None and not Path(path).is_file():
                raise OptionError(option, path, "there is no such file")
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise OptionError("--ssl-keyfile", self.ssl_keyfile, "--ssl-certfile is missing")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.ssl_certfile, self.ssl_keyfile
            )
        except (ssl.SSLError, OSError) as error:
            reason = f"no certificate and key that fit: {error.args[-1]}"
            raise OptionError("--ssl-certfile", self.ssl_certfile, reason) from error


def check_seconds(option: str, seconds: float, *, none: bool = False) -> None:
    """OptionError unless it is a time above 0. none: the command takes 0, too, for no limit."""
    if not (0 < seconds < math.inf):
        reason = "it must be a finite number above 0" + (", or 0 for none" if none else "")
        raise OptionError(option, seconds, reason)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may stand for any address
