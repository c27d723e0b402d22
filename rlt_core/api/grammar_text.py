"""From a Structured to the text of a grammar as llguidance reads it, and its faults in words.

llguidance is imported on first use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlt_core.api.structured import Structured

# Between the parts of a JSON value: nothing, a space, or a new line with its indentation. With
# any white space at all a model may write it without end.
WHITE_SPACE = r"\x20|\n\x20{0,24}|\n\t{0,8}"
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_ASIDES = ("failed to compile JSON schema: ",)


def grammar_text(structured: Structured, special: Mapping[str, int]) -> str:
    """The grammar of an answer; `special`: the tokenizer's special tokens by their text, which
    prefix and suffix may name. It may still have faults."""
    if structured.prefix or structured.suffix:
        return _framed(structured, special)
    from llguidance import LLMatcher

    if structured.kind in ("json_object", "json_schema"):
        return LLMatcher.grammar_from_json_schema(_schema(structured))
    if structured.kind == "regex":
        return LLMatcher.grammar_from_regex(structured.regex or "")
    if structured.kind == "choice":
        return LLMatcher.grammar_from_lark(f"start: {_choices(structured)}")
    return LLMatcher.grammar_from_lark(_lark(structured.grammar or ""))


def fault_text(message: str) -> str:
    """What llguidance says is wrong with a grammar, in one line of its own words."""
    lines = [line.strip() for line in message.strip().splitlines()]
    first = _PLACE.sub("", lines[0]) if lines else "it cannot be read"
    for aside in _ASIDES:
        first = first.removeprefix(aside)
    # The regex parser shows the pattern and a pointer first, and then says what is wrong.
    cause = next((line for line in lines if line.startswith("error: ")), "")
    return f"{first} {cause.removeprefix('error: ')}".strip() if cause else first


def _framed(structured: Structured, special: Mapping[str, int]) -> str:
    """With text before and behind it."""
    from llguidance import LLMatcher

    parts = (_literal(structured.prefix, special), "body", _literal(structured.suffix, special))
    start = "start: " + " ".join(part for part in parts if part)
    return LLMatcher.grammar_from_lark(f"{start}\n{_body(structured)}")


def _body(structured: Structured) -> str:
    if structured.kind in ("json_object", "json_schema"):
        return f"body: %json {json.dumps(_schema(structured))}"
    if structured.kind == "regex":
        from llguidance import regex_to_lark

        return f"body: BODY\nBODY: /{regex_to_lark(structured.regex or '', '')}/"
    if structured.kind == "choice":
        return f"body: {_choices(structured)}"
    return f"body: %lark {{\n{_lark(structured.grammar or '')}\n}}"


def _schema(structured: Structured) -> dict[str, Any]:
    """The schema, with what white space an answer may have."""
    given: Any = {"type": "object"}
    if structured.kind == "json_schema":
        given = json.loads(str(structured.json_schema))
    settings = {"whitespace_pattern": WHITE_SPACE}
    schema: dict[str, Any] = {} if given is True else dict(given)
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**settings, **own} if isinstance(own, dict) else settings}


def _choices(structured: Structured) -> str:
    return " | ".join(json.dumps(choice) for choice in structured.choice or ())


def _lark(grammar: str) -> str:
    """A grammar in Lark syntax; one in GBNF is written over."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    return str(any_to_lark(grammar)).replace("%llguidance {}", "")


def _literal(text: str, special: Mapping[str, int]) -> str:
    """Text as Lark writes it, special tokens by their ids."""
    if not text:
        return ""
    names = sorted(special, key=len, reverse=True)
    pattern = "|".join(re.escape(name) for name in names)
    parts = re.split(f"({pattern})", text) if pattern else [text]
    written = [f"<[{special[p]}]>" if p in special else json.dumps(p) for p in parts if p]
    return " ".join(written)
