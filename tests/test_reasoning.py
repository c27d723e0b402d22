"""Reasoning is cut from the answer at its tags, however the text comes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from rlt_core.api.reasoning import CLOSE, OPEN, ReasoningSplitter

# (text, inside, reasoning or None, answer)
TEXTS = [
    ("abc</think>\n\nhello", True, "abc", "hello"),
    ("\nabc\n</think>\n\nhello", True, "abc", "hello"),
    ("<think>abc</think>hello", False, "abc", "hello"),
    ("\n<think>\nabc\n</think>\n\nhello ", False, "abc", "hello "),
    ("<think> a b c d", False, "a b c d", ""),
    ("a b c d", True, "a b c d", ""),
    ("a b </thin", True, "a b </thin", ""),
    ("a </b> < / </think x </think>", True, "a </b> < / </think x", ""),
    ("</think>", True, "", ""),
    ("", True, "", ""),
    ("<think>a</think>b", True, "a", "b"),
    ("<thinking></think>b", True, "<thinking>", "b"),
    ("\n</think>\n\n", True, "", ""),
    ("", False, None, ""),
    ("hello", False, None, "hello"),
    (" \n hello", False, None, " \n hello"),
    ("<thin", False, None, "<thin"),
    ("say <think> and </think>", False, None, "say <think> and </think>"),
    ("</think>hello", False, None, "</think>hello"),
    ("<think>a</think>b<think>c</think>d", False, "a", "b<think>c</think>d"),
    ("a<</think></think>b", True, "a<", "</think>b"),
    ("漢字</think>仮名 \N{GRINNING FACE}", True, "漢字", "仮名 \N{GRINNING FACE}"),
]


def split(parts: list[str], inside: bool) -> tuple[str | None, str]:
    splitter, reasoning, answer = ReasoningSplitter(inside=inside), "", ""
    for part in (*parts, None):
        more = splitter.flush() if part is None else splitter.feed(part)
        reasoning, answer = reasoning + more[0], answer + more[1]
    return (reasoning if splitter.opened else None), answer


@pytest.mark.parametrize(("text", "inside", "reasoning", "answer"), TEXTS)
def test_the_parts_are_the_same_in_every_split(
    text: str, inside: bool, reasoning: str | None, answer: str
) -> None:
    """CASES A23, A38: reasoning without an opening tag was taken for the answer, one that was cut
    off was lost, and a tag that came in two pieces was missed."""
    assert split([text], inside) == (reasoning, answer)
    assert split(list(text), inside) == (reasoning, answer)
    for cut in range(len(text) + 1):
        assert split([text[:cut], text[cut:]], inside) == (reasoning, answer), cut


def test_random_pieces_agree(seed: int) -> None:
    """A tag beside white space, or a tag inside a tag, came out otherwise in other pieces."""
    draw = random.Random(seed)
    words = ["<", "</", "think>", OPEN, CLOSE, " ", "\n", "a", "<thi", "nk>"]
    for _ in range(3000):
        text = "".join(draw.choices(words, k=draw.randrange(9)))
        cuts = sorted(draw.choices(range(len(text) + 1), k=draw.randrange(5)))
        parts = [text[a:b] for a, b in pairwise((0, *cuts, len(text)))]
        for inside in (False, True):
            assert split(parts, inside) == split([text], inside), (text, parts)


def test_no_piece_of_a_tag_is_sent_early() -> None:
    """CASES A38: "</thi" reached the client as reasoning before "nk>" came."""
    splitter = ReasoningSplitter(inside=True)
    sent = [splitter.feed(part) for part in ("so ", "it is", " \n</th", "ink>", "\n", "\nYes")]
    assert sent == [("so", ""), (" it is", ""), ("", ""), ("", ""), ("", ""), ("", "Yes")]
    splitter = ReasoningSplitter(inside=False)
    sent = [splitter.feed(part) for part in ("\n", "<th", "ink", ">a")]
    assert sent == [("", "")] * 3 + [("a", "")]
