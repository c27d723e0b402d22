"""Where in a request's JSON a problem lies, as its errors name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlt_core.contract.errors import RequestError

_ABSENT = object()
_NO_JSON = (
    "was not sent as JSON: the header Content-Type must be application/json\n"
    "Fix: curl -H 'Content-Type: application/json' ..."
)
_SHOULD = "Input should be "
# In JSON's words, and not in Python's.
_TYPES = dict.fromkeys(
    ("dict_type", "model_type", "model_attributes_type"), f"{_SHOULD}a valid object"
)


def request_error(problems: Sequence[Mapping[str, Any]], body: object) -> RequestError:
    """What pydantic found wrong with a body, as one problem named by its place in the JSON.

    A field of several types has a problem for each; those that lie deepest are of the type that was
    meant. Of several at one place, one that is not about the type is of the type that was given;
    where there is none, all types are named.
    """
    if isinstance(body, bytes):
        return RequestError("body", _NO_JSON)
    same = [p for p in problems if _top(p) == _top(problems[0])]
    paths = [_path(problem, body) for problem in same]
    path = max(paths, key=len)
    found = [problem for problem, own in zip(same, paths, strict=True) if own == path]
    problem = next((p for p in found if not _is_type(p)), None)
    if problem is not None and problem["type"] == "json_invalid":
        return RequestError("body", f"is no JSON ({_text(problem)})")
    text = _any_of(found) if problem is None else _text(problem)
    return RequestError(writable(_written(path)) or "body", writable(text[:1].lower() + text[1:]))


def writable(text: str) -> str:
    """A text that can be sent: parts of a request may hold what no encoder takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_type(problem: Mapping[str, Any]) -> bool:
    kind: str = problem["type"]
    return kind.endswith("_type") or kind == "literal_error"


def _text(problem: Mapping[str, Any]) -> str:
    context = problem.get("ctx") or {}
    text = _TYPES.get(problem["type"]) or str(context.get("error") or problem["msg"])
    return text.replace(" after validation, not ", ", not ")


def _any_of(problems: Sequence[Mapping[str, Any]]) -> str:
    """Input should be a valid string, Input should be a list -> ... a string or a list"""
    texts = dict.fromkeys(_text(problem) for problem in problems)
    *first, last = (text.removeprefix(_SHOULD).removeprefix("a valid ") for text in texts)
    if not first:
        return next(iter(texts))
    return f"{_SHOULD}{', '.join(map(_with_article, first))} or {_with_article(last)}"


def _with_article(kind: str) -> str:
    return kind if kind.startswith(("'", "a ", "an ")) else f"a{'n' * (kind[0] in 'aio')} {kind}"


def _top(problem: Mapping[str, Any]) -> object:
    place = _place(problem)
    return place[0] if place else None


def _place(problem: Mapping[str, Any]) -> tuple[str | int, ...]:
    place: tuple[str | int, ...] = tuple(problem["loc"])
    return place[1:] if place[:1] == ("body",) else place


def _path(problem: Mapping[str, Any], body: object) -> list[str | int]:
    """The parts of a place that are in the body; pydantic puts names of types between them."""
    path: list[str | int] = []
    place, here = _place(problem), body
    for i, part in enumerate(place):
        inner = _inside(here, part)
        if inner is not _ABSENT:
            path.append(part)
            here = inner
        elif i == len(place) - 1 and problem["type"] in ("missing", "extra_forbidden"):
            path.append(part)
    return path


def _inside(value: object, part: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _written(path: Sequence[str | int]) -> str:
    """messages, 0, content -> messages[0].content"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
