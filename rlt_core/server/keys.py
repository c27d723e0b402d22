"""API keys: kept as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlt_core.contract.errors import OptionError

VARIABLE = "RLT_API_KEYS"
SHORTEST = 8
_FIX = 'Fix: a key of python3 -c "import secrets; print(secrets.token_urlsafe())"'


class ApiKeys:
    """The keys that open the server. Only their SHA-256 is kept, so that none can be printed."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """OptionError for a key that is too short, or could not be sent in a header."""
        keys = list(keys)
        for number, key in enumerate(keys, 1):
            _check(key, number)
        self._digests = [_digest(key.encode()) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"<{len(self)} API keys>"

    def accepts(self, authorizations: list[bytes]) -> bool:
        """Whether the values of a request's Authorization headers are one `Bearer KEY`."""
        if len(authorizations) != 1:
            return False
        scheme, _, key = authorizations[0].partition(b" ")
        given, found = _digest(key.strip()), False
        for digest in self._digests:
            # Every key is compared, whatever came of those before.
            found |= hmac.compare_digest(digest, given)
        return found and scheme.lower() == b"bearer"


def read_keys(file: str | None, environment: Mapping[str, str]) -> ApiKeys:
    """Keys of a file (one a line, # begins a comment line) and of RLT_API_KEYS (spaces or commas
    between them). OptionError for a file without any."""
    keys = [key for key in re.split(r"[\s,]+", environment.get(VARIABLE, "")) if key]
    if file is not None:
        found = _read_file(Path(file))
        if not found:
            raise OptionError("--api-key-file", file, "it holds no key; one a line is read")
        keys += found
    return ApiKeys(dict.fromkeys(keys))


def _read_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise OptionError("--api-key-file", str(path), str(reason)) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _check(key: str, number: int) -> None:
    # The key itself is in no message: messages end up in logs.
    if len(key) < SHORTEST:
        raise OptionError("API key", number, f"it is shorter than {SHORTEST} characters", _FIX)
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        reason = "only printable ASCII without spaces can be sent"
        raise OptionError("API key", number, reason, _FIX)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
