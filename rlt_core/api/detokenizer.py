"""Tokens to text, one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from rlt_core.api.tokenizer import Tokenizer


class Detokenizer:
    """The text that generated tokens add to a prompt.

    Works on bytes: a character whose bytes are not all there is held back, `flush` replaces what
    is left of one, once, at the end. All increments together are the same text however the
    tokens are fed. No byte of the prompt is part of it: the prompt's last token only says how
    the first generated one is joined. Each token costs the same, whatever the length so far.
    shown: special tokens that are text all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(shown)
        self._previous = next((t for t in reversed(prompt) if t not in self._skipped), None)
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters that are complete now."""
        if token in self._skipped:
            return ""
        piece = self._tokenizer.piece(self._previous, token)
        self._previous = token
        return self._bytes.decode(piece)

    def flush(self) -> str:
        """The end: an incomplete character as U+FFFD, else nothing."""
        return self._bytes.decode(b"", final=True)


def detokenize(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    prompt: Sequence[int] = (),
    *,
    skip_special_tokens: bool = True,
) -> str:
    """The whole text at once, by the same rules."""
    text = Detokenizer(tokenizer, prompt, skip_special_tokens=skip_special_tokens)
    return "".join([text.feed(token) for token in tokens]) + text.flush()
