"""Tokenizers for grammars without a model, and answers drawn at random under their masks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from rlt_core.api.constraint import Constraint, next_masks
from rlt_core.runtime.batch import I32

EOS, PAD = 0, 1
# With tokens of several bytes, some texts twice, and one id without a text.
TEXTS: tuple[str, ...] = (
    "{",
    '{"',
    '"',
    '":',
    '": ',
    ",",
    ", ",
    '", "',
    "}",
    '"}',
    "[",
    "]",
    "true",
    "null",
    " ",
)
TEXTS += ("name", "age", "ag", "e", "yes", "no", "  ", "\n", "\n  ", "0", "1", "12", "-", ".5", "}")
TEXTS += ("<think>", "</think>", "</", "think", ">", "> {", "a", "b", "the", " the", "é", "<call>")
BYTES = tuple(bytes([b]) for b in range(256) if b > 127 or chr(b) not in TEXTS)
TOKENS = (b"<eos>", b"<pad>", *(text.encode() for text in TEXTS), b"", *BYTES)
NAMED = {text.encode(): token for token, text in reversed(list(enumerate((*"..", *TEXTS))))}


class Words:
    """A tokenizer of TOKENS, longest first; <eos>, <pad> and <call> are special."""

    def __init__(self, tokens: Sequence[bytes] = TOKENS) -> None:
        self._tokens = tokens
        self._ids = {piece: token for token, piece in reversed(list(enumerate(tokens))) if piece}
        special = (b"<eos>", b"<pad>", b"<call>")
        self.special_ids = frozenset(self._ids[s] for s in special if s in self._ids)

    def encode(self, text: str) -> list[int]:
        data, found = text.encode(), []
        while data:
            length = max(n for n in range(1, len(data) + 1) if data[:n] in self._ids)
            found.append(self._ids[data[:length]])
            data = data[length:]
        return found

    def piece(self, previous: int | None, token: int) -> bytes:
        return self._tokens[token] if token < len(self._tokens) else b""


def allowed(words: I32) -> list[int]:
    """The tokens that a mask lets through."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(token) for token in bits.nonzero()[0]]


def walk(
    constraint: Constraint, first: I32, stop_ids: Sequence[int], draw: random.Random, most: int
) -> tuple[list[int], str]:
    """Tokens drawn at random, a stop id taken as soon as one may be; how it ended."""
    tokens: list[int] = []
    words = first
    while len(tokens) < most:
        choices = allowed(words)
        assert choices, (tokens, constraint.error)
        ends = [token for token in choices if token in stop_ids]
        if ends and (len(ends) == len(choices) or draw.random() < 0.5):
            return tokens, "stop"
        token = draw.choice([token for token in choices if token not in stop_ids])
        tokens.append(token)
        constraint.take(token)
        (words,) = next_masks([constraint])
        if constraint.complete:
            return tokens, "complete"
    return tokens, "length"
