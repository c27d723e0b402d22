"""One answer under a grammar: tokens in, the mask of the next token out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlt_core.api.reasoning import CLOSE
from rlt_core.api.token_trie import TokenTrie
from rlt_core.runtime.batch import I32
from rlt_core.runtime.mask_rows import WORD_BITS, num_words

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

_STUCK = "the grammar goes on with text that no token of the vocabulary can write"


class Constraint:
    """Follows an answer. A thread of its own may work on it while another reads `error` and
    `complete`.

    In a think block (a chat whose prompt ends in an open one, or an answer that begins with one)
    everything is allowed but to end the answer; the grammar is that of what comes behind it.
    stop_ids: what ends the answer once the grammar does. complete: the grammar is at its end and
    nothing can end the answer, so that it ends there. error: why it cannot go on.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        trie: TokenTrie,
        stop_ids: Sequence[int],
        *,
        thinks: bool,
        open_id: int | None = None,
    ) -> None:
        """thinks: the answer begins inside a think block. open_id: the token that may open one."""
        self.matcher, self.error, self.complete = matcher, "", False
        self.num_taken = 0
        self._trie, self._stop_ids = trie, np.array(stop_ids, np.int64)
        self._thinks, self._open_id, self._tail = thinks, open_id, b""

    @property
    def asks_grammar(self) -> bool:
        """Whether the next mask is the grammar's."""
        return not self._thinks and not self.error

    def take(self, token: int) -> None:
        """A token that the model gave, and that did not end the answer."""
        self.num_taken += 1
        if self._thinks:
            self._think(self._trie.piece(token))
        elif self.num_taken == 1 and token == self._open_id:
            self._thinks = True
        elif not self.matcher.consume_token(token):
            self._fail(f"token {token} is not of the grammar ({_first(self.matcher)})")

    def settle(self, words: I32) -> I32:
        """The mask int32 [num_words] from what the grammar allows, which has a bit for each of the
        trie's ids; of no meaning where it does not ask the grammar."""
        vocab = self._trie.vocab_size
        if self.error:
            return np.zeros(num_words(vocab), np.int32)
        if self._thinks:
            return self._all_but_stops()
        if self.matcher.is_error():
            self._fail(_first(self.matcher))
            return np.zeros(num_words(vocab), np.int32)
        ends = bool(words[vocab // WORD_BITS] >> (vocab % WORD_BITS) & 1)
        words[vocab // WORD_BITS] &= (1 << vocab % WORD_BITS) - 1
        words = words[: num_words(vocab)]
        if ends:
            np.bitwise_or.at(words, self._stop_ids // WORD_BITS, _bits(self._stop_ids))
        if self._open_id is not None and not self.num_taken:
            words[self._open_id // WORD_BITS] |= _bit(self._open_id)
        if not words.any():
            self.complete, self.error = ends, "" if ends else _STUCK
        return words

    def _fail(self, reason: str) -> None:
        """Text that cannot be written shows as one fault or another of the library."""
        self.error = _STUCK if self._trie.lacks_bytes else reason

    def _think(self, piece: bytes) -> None:
        before, tag, behind = (self._tail + piece).partition(CLOSE.encode())
        if not tag:
            self._tail = before[-len(CLOSE) :]
            return
        self._thinks = False
        # White space at the tag belongs to neither side; other text of its token is answer.
        for token in self._trie.tokens(behind.lstrip()):
            if not self.matcher.consume_token(token):
                self.error = "the token that ended the think block began an answer of another form"
                return

    def _all_but_stops(self) -> I32:
        words = np.full(num_words(self._trie.vocab_size), -1, np.int32)
        np.bitwise_and.at(words, self._stop_ids // WORD_BITS, ~_bits(self._stop_ids))
        return words


def next_masks(constraints: Sequence[Constraint], executor: LLExecutor | None = None) -> I32:
    """The masks of the next tokens of these answers, int32 [N, num_words]; those that have
    nothing to allow say why in `error` or `complete`. executor: works on several at once."""
    trie = constraints[0]._trie
    width = num_words(trie.size)
    words = np.zeros((len(constraints), width), np.int32)
    asking = [(c.matcher, i) for i, c in enumerate(constraints) if c.asks_grammar]
    if executor is not None and len(asking) > 1:
        executor.unsafe_compute_mask_ptr(asking, words.ctypes.data, width * 4, len(words))
    else:
        for matcher, i in asking:
            matcher.unsafe_compute_mask_ptr(words[i].ctypes.data, width * 4)
    return np.stack([c.settle(row) for c, row in zip(constraints, words, strict=True)])


def _bit(token: int) -> int:
    """The token's bit in its word, as a signed number of 32 bits."""
    place = token % WORD_BITS
    return -(1 << place) if place == WORD_BITS - 1 else 1 << place


def _bits(tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> I32:
    bits: I32 = (np.uint32(1) << (tokens % WORD_BITS).astype(np.uint32)).view(np.int32)
    return bits


def _first(matcher: LLMatcher) -> str:
    lines = matcher.get_error().strip().splitlines()
    return lines[0] if lines else "the grammar's own limit"
