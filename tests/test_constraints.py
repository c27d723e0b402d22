"""Grammars without a model: whatever is drawn under the masks has the form that was asked for."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer as LibraryModel
from tokenizers.models import WordLevel

from rlt_core.api.constraint import Constraint, next_masks
from rlt_core.api.constraints import MAX_GRAMMARS, Constraints
from rlt_core.api.structured import Structured
from rlt_core.api.token_trie import TokenTrie
from rlt_core.api.tokenizer import LibraryTokenizer, Tokenizer, decode_all, load_tokenizer
from rlt_core.api.turn import Turn
from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import I32
from rlt_core.testing.byte_tokenizer import write_byte_tokenizer
from tests.grammar_kit import EOS, NAMED, PAD, TOKENS, Words, allowed, walk

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "next": {"$ref": "#/$defs/next"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
}
SCHEMAS: tuple[Any, ...] = (
    PERSON,
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
    {"oneOf": [{"const": {"a": [1, 2]}}, {"enum": ["yes", None, 12]}]},
    {"type": "string", "pattern": "^[ab]{2,4}$"},
    True,
)
VOCAB = len(TOKENS)


@pytest.fixture(scope="module")
def single_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    found = load_tokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))
    assert found is not None
    return found


def start(
    structured: Structured,
    tokenizer: Tokenizer | None = None,
    stop_ids: tuple[int, ...] = (EOS,),
    turn: Turn | None = None,
    vocab: int = VOCAB,
) -> tuple[Constraint, I32]:
    return Constraints(vocab).start(structured, tokenizer or Words(), stop_ids, turn)


def drawn(
    structured: Structured, tokenizer: Tokenizer, vocab: int, stop: int, seed: object, most: int
) -> tuple[str, str]:
    """A text drawn under the masks, and how it ended."""
    begun = start(structured, tokenizer, (stop,), vocab=vocab)
    tokens, end = walk(*begun, (stop,), random.Random(str(seed)), most)
    return decode_all(tokenizer, tokens), end


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: str(s)[:24])
def test_random_tokens_become_valid_json(schema: Any, single_bytes: Tokenizer, seed: int) -> None:
    """A mask that lets one wrong token through, or the end too soon, gives text that another's
    JSON reader or validator refuses; with tokens of one byte and of many."""
    ended = 0
    for i in range(12):
        structured = Structured(json_schema=schema)
        for tokenizer, vocab, stop in ((single_bytes, 259, 258), (Words(), VOCAB, EOS)):
            text, end = drawn(structured, tokenizer, vocab, stop, (seed, i), 400)
            if end == "stop":
                jsonschema.validate(json.loads(text), schema)
                ended += 1
            else:
                assert _goes_on(structured, text), text
    assert ended > 6


def _goes_on(structured: Structured, text: str) -> bool:
    """Whether a text that max_tokens cut is the beginning of an answer."""
    byte = Words([b"<eos>", *(bytes([i]) for i in range(256))])
    constraint, _ = start(structured, byte, (0,), vocab=257)
    whole = text.encode()
    # The cut may have been within a character.
    for value in whole[: whole.rfind(b"\xef\xbf\xbd")] if "\ufffd" in text else whole:
        constraint.take(value + 1)
    return not constraint.error


def test_other_forms(single_bytes: Tokenizer, seed: int) -> None:
    """regex, choice, Lark, GBNF and a frame: each gives only what it says."""
    lark, gbnf = 'start: "a" B\nB: /[0-9]{2}/', 'root ::= "a" [0-9] [0-9]'
    forms = [
        (Structured(regex=r"[ab]{3}-[0-9]"), r"[ab]{3}-[0-9]"),
        (Structured(choice=["yes", "no", 'say "the"\n']), r'yes|no|say "the"\n'),
        (Structured(grammar=lark), "a[0-9]{2}"),
        (Structured(grammar=gbnf), "a[0-9]{2}"),
        (Structured(regex="a/b{1,2}", prefix="<x> {\n", suffix="/"), "<x> {\na/b{1,2}/"),
        (Structured(choice=["a", "b"], prefix='"'), '"[ab]'),
        (Structured(grammar=lark, suffix="."), "a[0-9]{2}\\."),
        (Structured(grammar=gbnf, suffix="."), "a[0-9]{2}\\."),
        (Structured(json_object=True, prefix="call "), r"call \{.*\}"),
    ]
    for i in range(4):
        for structured, pattern in forms:
            text, end = drawn(structured, single_bytes, 259, 258, (seed, i), 500)
            if end == "stop":
                assert re.fullmatch(pattern, text, re.DOTALL), (structured, text)
            else:
                assert structured.json_object, (structured, text)


def test_an_answer_ends_where_the_grammar_does() -> None:
    """Stop ids are let through where the answer may end, all of them and nowhere else; nothing
    else is, once it must. Without any the answer is complete there."""
    constraint, first = start(Structured(regex="ab?"), stop_ids=(EOS, PAD))
    a, b = NAMED[b"a"], NAMED[b"b"]
    assert allowed(first) == [a]
    constraint.take(a)
    assert allowed(next_masks([constraint])[0]) == [EOS, PAD, b]
    constraint.take(b)
    assert allowed(next_masks([constraint])[0]) == [EOS, PAD]
    assert not constraint.complete
    endless, _ = start(Structured(regex="ab?"), stop_ids=())
    endless.take(a)
    assert allowed(next_masks([endless])[0]) == [b]
    assert not endless.complete
    endless.take(b)
    assert not next_masks([endless])[0].any()
    assert endless.complete
    assert not endless.error


def test_special_tokens_are_no_text() -> None:
    """A special token whose name is a legal string would be drawn inside of one, and vanish from
    the text; in a prefix its name means the token."""
    _, first = start(Structured(regex="<call>|<eos>|a"))
    assert allowed(first) == [NAMED[b"a"], TOKENS.index(b"<")]
    constraint, first = start(Structured(regex="a", prefix="<call>"))
    assert allowed(first) == [NAMED[b"<call>"]]
    constraint.take(NAMED[b"<call>"])
    assert allowed(next_masks([constraint])[0]) == [NAMED[b"a"]]


FAULTS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"json_schema": {"type": "strng"}}, "json_schema", "strng"),
    ({"json_schema": {"not": {"type": "string"}}}, "json_schema", "not"),
    ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema", "nowhere"),
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "json_schema", "minimum"),
    ({"json_schema": {"type": "string", "format": "tea"}}, "json_schema", "tea"),
    ({"json_schema": {"type": "string", "pattern": "(a"}}, "json_schema", "unclosed group"),
    ({"json_schema": {"not": {}}, "prefix": "x"}, "json_schema", "not"),
    ({"regex": "(a"}, "regex", "unclosed group"),
    ({"regex": "(?=a)b"}, "regex", "look-ahead"),
    ({"regex": ""}, "regex", "empty"),
    ({"regex": "a{0}"}, "regex", "empty"),
    ({"grammar": "start: nobody"}, "grammar", "nobody"),
    ({"grammar": 'root ::= "a" nobody'}, "grammar", "nobody"),
    ({"json_schema": "{"}, "json_schema", "JSON"),
    ({"json_schema": "[]"}, "json_schema", "array"),
    ({"json_schema": {"a": {1, 2}}}, "json_schema", "JSON"),
    ({"json_schema": False}, "json_schema", "false"),
    ({"choice": []}, "choice", "list"),
    ({"choice": "yes"}, "choice", "list"),
    ({"choice": [""]}, "choice", "one character"),
    ({}, "structured", "exactly one"),
    ({"regex": "a", "json_object": True}, "structured", "exactly one"),
    ({"json_object": 1}, "json_object", "true or false"),
)


@pytest.mark.parametrize(("given", "field", "says"), FAULTS, ids=lambda v: str(v)[:30])
def test_a_fault_is_named(given: dict[str, Any], field: str, says: str) -> None:
    """What cannot be meant is refused before it runs, in a line that names it; nothing of the
    grammar library's own state is in it."""
    with pytest.raises(RequestError, match=re.escape(says)) as caught:
        start(Structured(**given), stop_ids=() if "a{0}" in str(given) else (EOS,))
    assert caught.value.field == field
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_what_no_vocabulary_can_write_is_refused() -> None:
    """A row without an allowed token would fail late, or never end."""
    names = Words([b"<eos>", b"Ann", b"Bob"])
    with pytest.raises(RequestError, match="no token of the vocabulary"):
        start(Structured(json_object=True), names, vocab=3)
    constraint, first = start(Structured(regex="Ann, Bob|Bob"), names, vocab=3)
    assert allowed(first) == [1, 2]
    constraint.take(1)
    assert not next_masks([constraint])[0].any()
    assert "no token of the vocabulary" in constraint.error


def test_tokenizers_that_cannot_serve_are_refused() -> None:
    """Without a tokenizer, or with tokens that change with the one before, a mask is wrong."""
    with pytest.raises(RequestError, match="needs a tokenizer"):
        Constraints(VOCAB).start(Structured(regex="a"), None, (EOS,))
    words = LibraryModel(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    with pytest.raises(RequestError, match="joins words by rules"):
        start(Structured(regex="a"), LibraryTokenizer(words), vocab=3)

    class Broken(Words):
        def piece(self, previous: int | None, token: int) -> bytes:
            raise KeyError(token)

    with pytest.raises(RequestError, match="KeyError"):
        start(Structured(regex="a"), Broken())


def test_a_wrong_token_is_an_error() -> None:
    """A stage that ignores a mask must not go unnoticed."""
    constraint, _ = start(Structured(regex="ab"))
    constraint.take(NAMED[b"b"])
    assert "not of the grammar" in constraint.error
    assert not next_masks([constraint])[0].any()


def test_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of a schema would compile it anew, or all of them would be kept for ever."""
    made, words = Constraints(VOCAB), Words()
    calls: list[tuple[Any, ...]] = []
    inner = TokenTrie.__init__

    def watched(self: TokenTrie, *args: Any) -> None:
        calls.append(args)
        inner(self, *args)

    monkeypatch.setattr(TokenTrie, "__init__", watched)
    first, _ = made.start(Structured(regex="a+"), words, (EOS,))
    second, _ = made.start(Structured(regex="a+"), words, (EOS,))
    assert first.matcher is not second.matcher
    assert len(made._compiled) == len(calls) == 1
    for i in range(MAX_GRAMMARS + 3):
        made.start(Structured(regex=f"a{{{i + 1}}}"), words, (EOS,))
    assert len(made._compiled) == MAX_GRAMMARS
    assert len(calls) == 1
    # One answer's tokens move no other's.
    first.take(NAMED[b"a"])
    assert allowed(next_masks([second])[0]) == [NAMED[b"a"]]


def test_the_grammar_begins_behind_a_think_block() -> None:
    """In a chat that begins inside a think block a grammar from the first token on would leave
    no thought; there anything goes but to end. The tag may be one token or several, and a token
    may hold its end and the answer's beginning."""
    turn, form = Turn(inside=True), Structured(regex="[{]a")
    everything = [t for t in range(32 * -(-VOCAB // 32)) if t != EOS]
    spelt = [b"</", b"think", b">"]
    for closing, then in (
        ([b"</think>"], [b"{"]),
        (spelt, [b"{"]),
        ([b"</", b"think", b"> {"], []),
    ):
        constraint, first = start(form, turn=turn)
        assert allowed(first) == everything
        for piece in (b"the", b"<think>", b"}", *closing):
            constraint.take(NAMED[piece])
        if then:
            assert NAMED[b"{"] in allowed(next_masks([constraint])[0])
            assert NAMED[b"the"] not in allowed(next_masks([constraint])[0])
        for piece in then:
            constraint.take(NAMED[piece])
        assert allowed(next_masks([constraint])[0]) == [NAMED[b"a"]]
    constraint, _ = start(Structured(regex="a"), turn=turn)
    for piece in (b"</", b"think", b"> {"):
        constraint.take(NAMED[piece])
    assert "another form" in constraint.error
    # A model may begin a block itself, as its first token alone.
    constraint, first = start(form, turn=Turn(inside=False))
    assert NAMED[b"<think>"] in allowed(first)
    assert NAMED[b"{"] in allowed(first)
    constraint.take(NAMED[b"<think>"])
    assert allowed(next_masks([constraint])[0]) == everything
    constraint, _ = start(form, turn=Turn(inside=False))
    constraint.take(NAMED[b"{"])
    assert allowed(next_masks([constraint])[0]) == [NAMED[b"a"]]
    _, first = start(form)
    assert NAMED[b"<think>"] not in allowed(first)


def test_forced_text_is_written_as_the_tokenizer_would() -> None:
    """Forced text in tokens that the tokenizer would not choose is text the model never saw; a
    tokenizer that puts a space in front would put it into the answer."""
    trie = TokenTrie(Words(), VOCAB)
    assert trie.tokens(b'{"name": 12') == [NAMED[p] for p in (b'{"', b"name", b'": ', b"12")]
    assert trie.tokens("é".encode()[:1]) == [TOKENS.index(b"\xc3")]

    class Spaced(Words):
        def encode(self, text: str) -> list[int]:
            return [NAMED[b" "], *super().encode(text)]

    spaced = TokenTrie(Spaced(), VOCAB)
    assert spaced.tokens(b"name") == [NAMED[b"name"]]


def test_a_vocabulary_may_lack_bytes() -> None:
    """A byte that no token writes alone was taken for written: the answer began without it."""
    names = Words([b"<eos>", b" Ann", b"Ann", b" has "])
    for pattern, tokens in (
        (" Ann| Bob", [1]),
        (" Ann has ?", [1, 3]),
        ("Ann has  Ann", [2, 3, 1]),
    ):
        constraint, words = start(Structured(regex=pattern), names, vocab=4)
        for token in tokens:
            assert allowed(words) == [token]
            constraint.take(token)
            (words,) = next_masks([constraint])
        assert allowed(words) == [EOS]
    trie = TokenTrie(names, 4)
    assert (trie.single("Ann"), trie.single("A"), trie.lacks_bytes) == (2, None, True)


def test_several_at_once_are_as_one_by_one(seed: int) -> None:
    """The parallel path of the library, with answers that ask it nothing among the others."""
    from llguidance import LLExecutor

    made = Constraints(VOCAB)
    forms = (Structured(json_object=True), Structured(regex="[ab]+"), Structured(choice=["no"]))
    turn = Turn(inside=True)

    def some() -> list[Constraint]:
        found = [made.start(form, Words(), (EOS,))[0] for form in forms]
        return [*found, made.start(forms[0], Words(), (EOS,), turn)[0]]

    executor = LLExecutor(2)
    wanted = [next_masks([constraint])[0] for constraint in some()]
    for words, one in zip(next_masks(some(), executor), wanted, strict=True):
        assert words.tolist() == one.tolist()
