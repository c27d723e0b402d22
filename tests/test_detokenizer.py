"""Tokens to text and stop strings, with tokenizers made by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibTokenizer

from rlt_core.api.detokenizer import Detokenizer, detokenize
from rlt_core.api.pieces import _byte_table
from rlt_core.api.stop_strings import StopMatcher
from rlt_core.api.tokenizer import LibraryTokenizer, as_tokenizer

TEXTS = [
    "plain words, and a stop.",
    "family \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}!",
    "สวัสดีครับ ไทย",
    "漢字と仮名",
    "naïve café — “quotes”",
]


def byte_level() -> LibTokenizer:
    """All 256 bytes and a few merges, as GPT-2's kind has them."""
    chars = {byte: char for char, byte in _byte_table().items()}
    vocab = {chars[byte]: byte for byte in range(256)}
    pairs = [("t", "h"), ("th", "e"), (chars[0xE6], chars[0xBC]), (chars[0xF0], chars[0x9F])]
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    made = LibTokenizer(models.BPE(vocab=vocab, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    return made


def sentencepiece() -> LibTokenizer:
    """Metaspace with byte fallback, as Llama's kind has them."""
    vocab: dict[str, int] = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for char in "▁abcdefghijklmnopqrstuvwxyz,.!":
        vocab[char] = len(vocab)
    vocab["▁w"], vocab["or"] = len(vocab), len(vocab) + 1
    merges = [("▁", "w"), ("o", "r")]
    made = LibTokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return made


def word_level() -> LibTokenizer:
    """One token a word, no decoder: words are joined by a space."""
    words = ["<unk>", "Ann", "has", "7", ".", "?", "<end>"]
    made = LibTokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    return made


def increments(tokenizer: Any, tokens: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    text = Detokenizer(tokenizer, prompt)
    return [*(text.feed(token) for token in tokens), text.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_text_survives_every_border(make: Any, text: str) -> None:
    """CASES A76: a character spread over tokens reached the client as U+FFFD."""
    library = make()
    tokenizer = LibraryTokenizer(library)
    tokens = library.encode(text).ids
    parts = increments(tokenizer, tokens)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(parts)
    assert "".join(parts).lstrip(" ") == text
    for cut in range(len(tokens)):
        # The prompt ends at the cut, perhaps inside a character.
        rest = "".join(increments(tokenizer, tokens[cut:], tokens[:cut]))
        assert rest == detokenize(tokenizer, tokens[cut:], tokens[:cut])
        assert rest.lstrip("\N{REPLACEMENT CHARACTER}") in "".join(parts)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_cut_character_is_replaced_once(cut: int) -> None:
    """CASES A76: max_tokens inside an emoji gave one U+FFFD per byte, or lost the text."""
    library = byte_level()
    tokens = list("ok \N{GRINNING FACE}".encode())[: 3 + cut]
    parts = increments(LibraryTokenizer(library), tokens)
    assert "".join(parts[:-1]) == "ok "
    assert parts[-1] == "\N{REPLACEMENT CHARACTER}"


def test_prompt_bytes_never_come_back() -> None:
    """CASES A76: a prompt that ended in a lead byte leaked its character into the answer."""
    tokenizer = LibraryTokenizer(byte_level())
    han = list("漢".encode())
    assert "".join(increments(tokenizer, han[1:], han[:1])) == "\N{REPLACEMENT CHARACTER}" * 2
    assert "".join(increments(tokenizer, list(b"abc"), han)) == "abc"


def test_random_bytes_agree_with_the_library(seed: int) -> None:
    """Invalid bytes stopped an incremental decoder for good, or came out as other text."""
    draw = random.Random(seed)
    library = byte_level()
    tokenizer = LibraryTokenizer(library)
    for _ in range(200):
        tokens = [draw.randrange(260) for _ in range(draw.randrange(1, 12))]
        parts = increments(tokenizer, tokens)
        assert "".join(parts) == library.decode(tokens, skip_special_tokens=False)


def test_sentencepiece_space_of_a_continuation_stays() -> None:
    """The first generated word lost its leading space, so that words ran together."""
    library = sentencepiece()
    tokenizer = LibraryTokenizer(library)
    prompt, word = library.encode("hello").ids, library.encode("hello world").ids
    assert "".join(increments(tokenizer, word[len(prompt) :], prompt)) == " world"


def test_word_level_words_are_joined_like_the_library_does() -> None:
    """A tokenizer without a decoder joined no words, or put the prompt before the answer."""
    library = word_level()
    tokenizer = LibraryTokenizer(library)
    ids = library.encode("Ann has 7 .").ids
    parts = increments(tokenizer, ids[2:], ids[:2])
    assert parts == [" 7", " .", ""]
    assert library.decode(ids[:2]) + "".join(parts) == library.decode(ids)


def test_special_tokens_are_skipped_or_shown() -> None:
    """The end-of-text token's name was printed at the end of every answer."""
    library = byte_level()
    tokenizer = LibraryTokenizer(library)
    end = library.token_to_id("<end>")
    tokens = [*b"hi", end]
    assert detokenize(tokenizer, tokens) == "hi"
    assert detokenize(tokenizer, tokens, skip_special_tokens=False) == "hi<end>"


def test_each_token_is_decoded_once() -> None:
    """A detokenizer that decodes a growing window costs the square of the length."""

    class Counting:
        special_ids: frozenset[int] = frozenset()
        calls = 0

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def piece(self, previous: int | None, token: int) -> bytes:
            self.calls += 1
            return bytes([token])

    tokenizer = Counting()
    assert as_tokenizer(tokenizer) is tokenizer
    tokens = [0xE6] * 5000  # never a whole character: nothing may pile up
    increments(tokenizer, tokens)
    assert tokenizer.calls == len(tokens)


def all_splits(text: str) -> list[list[str]]:
    cuts = range(1, len(text))
    return [
        [text[a:b] for a, b in itertools.pairwise((0, *chosen, len(text)))]
        for size in range(len(text))
        for chosen in itertools.combinations(cuts, size)
    ]


@pytest.mark.parametrize(
    ("text", "stops", "expected", "matched"),
    [
        ("abc ENDING", ["END"], "abc ", "END"),
        ("abc EN", ["END"], "abc EN", None),
        ("xaa", ["aa", "a"], "x", "a"),
        ("abcd", ["abcd", "bc"], "a", "bc"),
        ("xababc", ["abc"], "xab", "abc"),
        ("aaab", ["aab"], "a", "aab"),
        ("a漢b", ["漢"], "a", "漢"),
    ],
)
def test_stop_strings_in_every_split(
    text: str, stops: list[str], expected: str, matched: str | None
) -> None:
    """CASES A75: "END" split as "E", "ND" was missed, or "E" was sent before the match."""
    for parts in all_splits(text):
        matcher = StopMatcher(stops)
        out, sent = "", []
        for part in parts:
            sent.append(matcher.feed(part))
            out += sent[-1]
            assert expected.startswith(out) or out == expected, parts
        out += matcher.flush()
        assert (out, matcher.matched) == (expected, matched), parts


def test_stop_string_can_stay_in_the_text() -> None:
    """CASES A75: with include_stop_str_in_output the stop was cut, or what followed was kept."""
    for parts in all_splits("abENDcd"):
        matcher = StopMatcher(["END"], include=True)
        assert "".join(map(matcher.feed, parts)) + matcher.flush() == "abEND"
