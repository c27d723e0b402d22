"""Options as a Python caller writes them, read by the kinds that a function declares for them."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from rlt_core.contract.errors import OptionError

# Up to a count of 2**40 the engine can work out the bytes, and say that there is no room.
MAX_COUNT, MAX_INT64 = 2**40, 2**63 - 1
# Those that are no counts from 1: lowest and highest value.
_RANGES = {
    "draft_depth": (0, MAX_COUNT),
    "kv_memory": (1, MAX_INT64),
    "kv_pages": (1, MAX_INT64),
    "swap_memory": (0, MAX_INT64),
    "random_weights": (0, MAX_INT64),
    "max_waiting": (0, MAX_COUNT),
}


def read_options(function: Callable[..., Any], values: Mapping[str, object]) -> dict[str, Any]:
    """The values of a function's parameters as plain ones of the kinds that its annotations name.

    OptionError for one of another kind or out of range. numpy's numbers and flags are taken as
    Python's, and torch's dtypes and devices by their names.
    """
    hints = get_type_hints(function)
    return {name: read_option(name, value, hints[name]) for name, value in values.items()}


def read_option(name: str, value: object, hint: Any) -> Any:
    """One value, of the kind that the annotation says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return None
    kind = get_origin(kinds[0]) or kinds[0]
    if kind is Literal:
        return _one_of(name, value, get_args(kinds[0]))
    return _READERS[kind](name, value)


def check_names(owner: type, given: Iterable[str], *functions: Callable[..., Any]) -> None:
    """TypeError, as Python's own for a wrong argument, for names that no function takes."""
    known = {
        name: None for function in functions for name in inspect.signature(function).parameters
    }
    known = {name: None for name in known if name not in ("self", "options")}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            has = "" if near else f"\nit has {', '.join(known)}"
            raise TypeError(f"{owner.__name__} has no option '{name}'{hint}{has}")


def _one_of(name: str, value: object, choices: Collection[str]) -> object:
    if not isinstance(value, str) or value not in choices:
        raise OptionError(name, value, f"it is {' or '.join(choices)}")
    return value


def _count(name: str, value: Any) -> int:
    least, most = _RANGES.get(name, (1, MAX_COUNT))
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise OptionError(name, value, f"it must be a whole number of {least} or more")
    if number > most:
        raise OptionError(name, value, f"it must be a whole number of at most {most}")
    return number


def _number(name: str, value: object) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise OptionError(name, value, "it must be a number")
    if math.isnan(value):
        raise OptionError(name, value, "it must be a number")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise OptionError(name, value, "it must be True or False")
    return bool(value)


def _name(name: str, value: object) -> str:
    if type(value).__module__ == "torch":  # a dtype or a device; torch is not imported for them
        value = str(value).removeprefix("torch.")
    if isinstance(value, os.PathLike) and name == "model":
        value = os.fspath(value)
    what = "a folder's path or an installed model's id" if name == "model" else "a name"
    if not isinstance(value, str):
        raise OptionError(name, value, f"it must be {what}, as text")
    if not value:
        rest = "; None takes the demo model" if name == "model" else ""
        raise OptionError(name, value, f"it is empty; it must be {what}{rest}")
    return value


def _table(name: str, value: object) -> dict[str, str]:
    pairs = [*value.items()] if isinstance(value, Mapping) else [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        fix = f'Fix: {name}={{"linear": "torch.linear"}}; rlt plugins lists them'
        raise OptionError(name, value, "it must be a table of candidates by operator", fix)
    return dict(pairs)


def _names(name: str, value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    names = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(text, str) for text in names):
        raise OptionError(name, value, "it must be a list of names")
    return names


_READERS: dict[Any, Callable[[str, Any], Any]] = {
    int: _count,
    float: _number,
    bool: _flag,
    str: _name,
    Mapping: _table,
    Iterable: _names,
}
