"""The choice of cases for `make test-fast`."""

from __future__ import annotations

import pytest

from tests.selection import mostly_slow


def test_no_case_is_lost_and_one_runs_always() -> None:
    """A case that is dropped, or slow by mistake, would be missed by nobody."""
    chosen = mostly_slow([("a", 1), ("b", 2), "c"], ("b", 2), "c")
    assert [case.values for case in chosen] == [("a", 1), ("b", 2), ("c",)]
    assert [[mark.name for mark in case.marks] for case in chosen] == [["slow"], [], []]


def test_a_fast_case_that_is_not_there_is_an_error() -> None:
    """A misspelt case left `make test-fast` without any."""
    with pytest.raises(ValueError, match="not among the cases: \\['d'\\]"):
        mostly_slow(["a", "b"], "d")
