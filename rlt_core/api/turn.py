"""What ends an assistant's turn of a chat, and what marks its reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlt_core.api.reasoning import CLOSE, OPEN, ReasoningSplitter
from rlt_core.api.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of a chat.

    inside: the prompt ends in an open think block. tag_ids: special tokens that are its tags, or
    tags of tool calls, and so text. end_ids: tokens that end the turn besides the model's own.
    """

    inside: bool
    tag_ids: frozenset[int] = frozenset()
    end_ids: tuple[int, ...] = ()

    def splitter(self) -> ReasoningSplitter:
        """A new one for each of the n answers."""
        return ReasoningSplitter(inside=self.inside)


def read_turn(
    tokenizer: ChatTokenizer, *, inside: bool, end: str | None, shown: Sequence[str] = ()
) -> Turn:
    """The turn of a tokenizer whose end-of-text token is written `end`. shown: further tags."""
    tags = (special_id(tokenizer, tag) for tag in (OPEN, CLOSE, *shown))
    last = None if end is None else special_id(tokenizer, end)
    return Turn(
        inside=inside,
        tag_ids=frozenset(tag for tag in tags if tag is not None),
        end_ids=() if last is None else (last,),
    )


def special_id(tokenizer: ChatTokenizer, text: str) -> int | None:
    """The id of the special token that is written so."""
    for token in tokenizer.encode_rendered(text):
        if token in tokenizer.special_ids and tokenizer.piece(None, token) == text.encode():
            return token
    return None
