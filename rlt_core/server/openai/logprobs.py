"""Log probabilities in the shapes of the two routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlt_core.api.detokenizer import Detokenizer
from rlt_core.api.outputs import Logprob
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.server.openai.chat_response import ChatLogprobs, TokenLogprob, TopLogprob
from rlt_core.server.openai.completion_response import CompletionLogprobs

LEAST = -9999.0  # JSON has no minus infinity
Table = Mapping[int, Logprob]  # the token itself first


def chat_logprobs(tables: Iterable[Table], num_top: int) -> ChatLogprobs:
    """One entry for each token; top_logprobs holds the `num_top` likeliest, best first."""
    return ChatLogprobs(content=[_chat_entry(table, num_top) for table in tables])


def _chat_entry(table: Table, num_top: int) -> TokenLogprob:
    entries = list(table.items())
    likeliest = sorted(entries, key=lambda entry: entry[1].rank)[:num_top]
    top = [_top(*entry) for entry in likeliest if entry[1].rank <= num_top]
    return TokenLogprob(**_top(*entries[0]).model_dump(), top_logprobs=top)


def _top(token: int, found: Logprob) -> TopLogprob:
    text = found.decoded_token if found.decoded_token is not None else f"token_id:{token}"
    data = None if found.token_bytes is None else list(found.token_bytes)
    return TopLogprob(token=text, logprob=max(found.logprob, LEAST), bytes=data)


class CompletionTexts:
    """The texts of a choice's tokens, and where each begins in its text."""

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], *, start: int, skip_special: bool
    ) -> None:
        self._offset = start
        self._text = None
        if tokenizer is not None:
            self._text = Detokenizer(tokenizer, prompt, skip_special_tokens=skip_special)

    def logprobs(
        self, tokens: Sequence[int], tables: Sequence[Table | None], names: Sequence[str]
    ) -> CompletionLogprobs:
        """The next tokens; names are their texts, tables may be None where nothing came before."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._text.feed(token)) if self._text is not None else 0
        return CompletionLogprobs(
            tokens=list(names),
            token_logprobs=[_own(t, table) for t, table in zip(tokens, tables, strict=True)],
            top_logprobs=[None if table is None else _by_text(table) for table in tables],
            text_offset=offsets,
        )


def token_text(token: int, piece: bytes | None) -> str:
    """A token as completions name it."""
    if piece is None:
        return f"token_id:{token}"
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def token_texts(
    tokenizer: Tokenizer | None, previous: int | None, tokens: Sequence[int]
) -> list[str]:
    """The texts of tokens that follow `previous`."""
    if tokenizer is None:
        return [token_text(token, None) for token in tokens]
    pairs = zip((previous, *tokens), tokens, strict=False)
    return [token_text(token, tokenizer.piece(before, token)) for before, token in pairs]


def _own(token: int, table: Table | None) -> float | None:
    return None if table is None else max(table[token].logprob, LEAST)


def _by_text(table: Table) -> dict[str, float]:
    found: dict[str, float] = {}
    for token, entry in table.items():
        # Two ids of one text: the likelier one counts, so that a greedy token is the largest.
        text, value = token_text(token, entry.token_bytes), max(entry.logprob, LEAST)
        found[text] = max(value, found.get(text, value))
    return found
