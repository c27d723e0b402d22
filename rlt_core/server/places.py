"""Where in a request's JSON a problem lies, as its errors name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlt_core.contract.errors import RequestError

_ABSENT = object()


def request_error(problems: Sequence[Mapping[str, Any]], body: object) -> RequestError:
    """What pydantic found wrong with a body, as one problem named by its place in the JSON.

    A field of several types has a problem for each; the one that lies deepest is of the type that
    was meant.
    """
    same = [p for p in problems if _top(p) == _top(problems[0])]
    paths = [_path(problem, body) for problem in same]
    deepest = max(range(len(same)), key=lambda i: (len(paths[i]), -i))
    problem, path = same[deepest], paths[deepest]
    context = problem.get("ctx") or {}
    text = str(context.get("error") or problem["msg"])
    if problem["type"] == "json_invalid":
        return RequestError("body", f"is no JSON ({text})")
    return RequestError(writable(_written(path)) or "body", writable(text[:1].lower() + text[1:]))


def writable(text: str) -> str:
    """A text that can be sent: parts of a request may hold what no encoder takes."""
    return text.encode("utf-8", "backslashreplace").decode()


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
