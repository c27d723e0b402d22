"""The bytes that one token adds to a text, from a tokenizer of the `tokenizers` library.

Most decoders map each token to bytes that depend on no other token: byte-level BPE, and
SentencePiece with or without byte fallback. Those are looked up once per token. Others join words
by rules (WordLevel, WordPiece); there a token's text is what it adds after the token before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
Step = Callable[[str], str]


class Pieces(Protocol):
    def piece(self, previous: int | None, token: int) -> bytes:
        """The bytes of `token` in a text where `previous` stands before it."""
        ...


def byte_pieces(backend: Any) -> Pieces | None:
    """Pieces that depend on one token alone, or None where the decoder joins tokens by rules."""
    steps = _decoder_steps(backend)
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TablePieces(backend, _byte_level)
    replaced = _replacements(steps)
    if replaced is None:
        return None
    fallback = any(step["type"] == "ByteFallback" for step in steps)
    return TablePieces(backend, lambda text: _spaced(text, replaced, fallback))


class TablePieces:
    """A token's bytes from its own string, remembered."""

    def __init__(self, backend: Any, to_bytes: Callable[[str], bytes]) -> None:
        self._backend, self._to_bytes = backend, to_bytes
        self._known: dict[int, bytes] = {}

    def piece(self, previous: int | None, token: int) -> bytes:
        """The bytes of `token`; nothing for an id the tokenizer does not know."""
        known = self._known.get(token)
        if known is None:
            text = self._backend.id_to_token(token)
            known = self._known[token] = b"" if text is None else self._to_bytes(text)
        return known


class PairPieces:
    """A token's text as what `decode` gives more for two tokens than for the first alone."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def piece(self, previous: int | None, token: int) -> bytes:
        """The bytes that `token` adds after `previous`."""
        alone = self._decode([token])
        if previous is None:
            return alone.encode()
        before, both = self._decode([previous]), self._decode([previous, token])
        return (both[len(before) :] if both.startswith(before) else alone).encode()

    def _decode(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=False))


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]] | None:
    """What the decoder replaces in each token; None when it joins tokens by rules. Without a
    decoder there are spaces between them. What it strips from the start of a whole text plays no
    part in the continuation of a prompt."""
    if not steps:
        return None
    replaced, fused = [], False
    for step in steps:
        kind = step["type"]
        if kind == "Metaspace":
            replaced.append((step["replacement"], " "))
        elif kind == "Replace" and "String" in step["pattern"]:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and not step["stop"]:
            continue
        elif kind != "ByteFallback":
            return None
    return replaced


def _spaced(text: str, replaced: list[tuple[str, str]], fallback: bool) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text) if fallback else None
    if byte is not None:
        return bytes([int(byte[1], 16)])
    for old, new in replaced:
        text = text.replace(old, new)
    return text.encode()


def _byte_level(text: str) -> bytes:
    # An added token may hold characters outside the table; it stands for itself.
    try:
        return bytes(_BYTE_OF[char] for char in text)
    except KeyError:
        return text.encode()


def _byte_table() -> dict[str, int]:
    """Character -> byte of byte-level BPE (Radford et al. 2019): printable Latin-1 stands for
    itself, the other 68 bytes follow in order from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_table()
