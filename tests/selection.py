"""Which cases of a parametrized test `make test-fast` runs; a plain pytest runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """The cases for `pytest.mark.parametrize`, all but those in `fast` marked slow.

    ValueError for a fast case that is not among them.
    """
    listed = list(cases)
    missing = [case for case in fast if case not in listed]
    if missing:
        raise ValueError(f"not among the cases: {missing}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in listed
    ]
