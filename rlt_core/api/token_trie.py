"""A tokenizer's tokens as a grammar reads them: bytes, special tokens, text to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlt_core.api.tokenizer import Tokenizer
from rlt_core.contract.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END = b"<end of the grammar>"
# Bytes that occur in text; many vocabularies have no others.
_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))


class TokenTrie:
    """The tokens of a vocabulary of V, and one more, id V: the end of a grammar, which is no token
    of the model. What really ends an answer is the request's own.

    special: the special tokens by their text. lacks_bytes: some text cannot be written in these
    tokens, and some grammars not be followed to their end. RequestError where a token's bytes
    depend on the token before it: no grammar can tell then what a token would write.
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
        self.lacks_bytes = any(bytes([byte]) not in self._ids for byte in _UTF8)
        self._longest = max(map(len, self._ids), default=0)
        self.lib = self._library(pieces, sorted(t for t in special if t < vocab_size))

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._tokenizer.piece(None, token)

    def single(self, text: str) -> int | None:
        """The token, special or not, that writes exactly this text."""
        return self.special.get(text, self._ids.get(text.encode()))

    def tokens(self, data: bytes) -> list[int]:
        """Tokens that write these bytes, as the tokenizer itself would where that is possible; as
        far as the vocabulary reaches."""
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
                break
            found.append(self._ids[data[at : at + length]])
            at += length
        return found

    def _library(self, pieces: list[bytes], special: list[int]) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Wrapped(self.tokens, pieces, special)))


class _Wrapped:
    """What llguidance's TokenizerWrapper asks for."""

    def __init__(self, tokens: Any, pieces: list[bytes], special: list[int]) -> None:
        end = len(pieces)
        self.eos_token_id, self.bos_token_id = end, None
        self.tokens, self.special_token_ids = [*pieces, END], [*special, end]
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
