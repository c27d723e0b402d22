"""What form an answer must have: one constraint, checked for its type when it is made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlt_core.contract.errors import RequestError

KINDS = ("json_object", "json_schema", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """Exactly one form that an answer must have.

    json_object: any JSON object. json_schema: a JSON value of that schema, given as a table or as
    JSON text (kept as text). regex: the whole answer matches it (Rust's syntax, without
    look-around). choice: one of these texts. grammar: a grammar in llguidance's Lark syntax, or
    GBNF (rules written with ::=).

    prefix, suffix: text that stands before and behind it, as a model's format of a tool call needs;
    the tokenizer's special tokens are written by their names.

    Raises RequestError naming the field. What needs the tokenizer (whether a schema's keywords are
    known, whether a grammar can be read) is told when the request is made.
    """

    json_object: bool = False
    json_schema: Mapping[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    prefix: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise RequestError("json_object", f"{self.json_object!r} is not true or false")
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if self.json_schema is False:
            raise RequestError("json_schema", "the schema false allows no answer at all")
        if len(given) != 1:
            said = " and ".join(given) if given else "none"
            raise RequestError("structured", f"{said} given; exactly one of {', '.join(KINDS)}")
        for name in ("regex", "grammar", "prefix", "suffix"):
            if not isinstance(getattr(self, name) or "", str):
                raise RequestError(name, f"{getattr(self, name)!r} is not text")
        for name in ("regex", "grammar"):
            if getattr(self, name) == "":
                raise RequestError(name, "is empty")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))

    @property
    def kind(self) -> str:
        """Which of KINDS it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


def _schema_text(schema: object) -> str:
    """A schema as JSON text, the keys in the order in which they were given: an answer's keys come
    in that order."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise RequestError("json_schema", f"is no JSON text ({error})") from error
    if schema is False:
        raise RequestError("json_schema", "the schema false allows no answer at all")
    if schema is not True and not isinstance(schema, Mapping):
        raise RequestError("json_schema", f"a schema is a JSON object, not {_json_type(schema)}")
    try:
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError("json_schema", f"cannot be written as JSON ({error})") from error


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", type(None): "null"}
    return names.get(type(value), f"{type(value).__name__}")


def _choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise RequestError("choice", f"{choices!r} is not a list of texts")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise RequestError("choice", f"{choice!r} is not a text of at least one character")
    return tuple(dict.fromkeys(choices))
