"""A tokenizer's tokens as a grammar reads them: bytes, special tokens, text to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlt_core.api.tokenizer import Tokenizer
from rlt_core.contract.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END = b"<end of the grammar>"
# Bytes that occur in text; many vocabularies have no others.
_UTF8 = tuple(bytes([byte]) for byte in (*range(0xC0), *range(0xC2, 0xF5)))


class TokenTrie:
    """The tokens of a vocabulary of V, and behind them what is no token of the model: id V, the end
    of a grammar (what really ends an answer is the request's own), and the bytes that no token
    writes alone. The library must be able to write all text: what it cannot, it takes for written.

    special: the special tokens by their text. size: all of these ids. lacks_bytes: some text cannot
    be written by the model, and some grammars not be followed to their end. RequestError where a
    token's bytes depend on the token before it: no grammar can tell then what it would write.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        pieces = _pieces(tokenizer, vocab_size)
        self.special = {
            pieces[token].decode("utf-8", "replace"): token
            for token in sorted(tokenizer.special_ids, reverse=True)
            if token < vocab_size and pieces[token]
        }
        special = set(tokenizer.special_ids)
        self._ids = {
            piece: token
            for token, piece in reversed(list(enumerate(pieces)))
            if piece and token not in special
        }
        lacking = [piece for piece in _UTF8 if piece not in self._ids]
        self.lacks_bytes, self.size = bool(lacking), vocab_size + 1 + len(lacking)
        self._ids.update({piece: vocab_size + 1 + i for i, piece in enumerate(lacking)})
        self._longest = max(map(len, self._ids))
        self.lib = self._library(
            [*pieces, END, *lacking], sorted({vocab_size, *(t for t in special if t < vocab_size)})
        )

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._tokenizer.piece(None, token)

    def single(self, text: str) -> int | None:
        """The token of the model, special or not, that writes exactly this text."""
        found = self.special.get(text, self._ids.get(text.encode(), self.size))
        return found if found < self.vocab_size else None

    def tokens(self, data: bytes) -> list[int]:
        """Tokens that write these bytes, as the tokenizer itself would where that is possible."""
        try:
            text = data.decode("utf-8")
            encode = getattr(self._tokenizer, "encode_rendered", self._tokenizer.encode)
            found = [int(token) for token in encode(text)]
            # It may put a space or a special token in front.
            if b"".join(self.piece(token) for token in found) == data:
                return found
        except (ValueError, TypeError):  # no text alone: a part of a character
            pass
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token first."""
        found, at = [], 0
        while at < len(data):
            lengths = range(min(self._longest, len(data) - at), 0, -1)
            length = next((n for n in lengths if data[at : at + n] in self._ids), 0)
            if not length:
                break  # a byte that occurs in no text
            found.append(self._ids[data[at : at + length]])
            at += length
        return found

    def _library(self, pieces: list[bytes], special: list[int]) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = _Wrapped(self.tokens, pieces, special, end=self.vocab_size)
        return LLTokenizer(TokenizerWrapper(wrapped))


class _Wrapped:
    """What llguidance's TokenizerWrapper asks for."""

    def __init__(self, tokens: Any, pieces: list[bytes], special: list[int], end: int) -> None:
        self.eos_token_id, self.bos_token_id = end, None
        self.tokens, self.special_token_ids = pieces, special
        self._tokens = tokens

    def __call__(self, data: bytes) -> list[int]:
        found: list[int] = self._tokens(data)
        return found


def _pieces(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    pieces = [tokenizer.piece(None, token) for token in range(vocab_size)]
    before = next((token for token, piece in enumerate(pieces) if piece.strip()), 0)
    for token, piece in enumerate(pieces):
        if tokenizer.piece(before, token) != piece:
            raise RequestError(
                "structured",
                "this tokenizer joins words by rules, so that a token's text depends on the one "
                "before it; a grammar needs tokens that stand for themselves",
            )
    return pieces
