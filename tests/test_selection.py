"""Which tests `make test-fast` leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.recording import SLOW_SECONDS, recorded_slow, slow_tests


def _report(nodeid: str, duration: float) -> Any:
    return SimpleNamespace(nodeid=nodeid, duration=duration)


def test_set_up_and_tear_down_count() -> None:
    """Guards tests whose fixture is what takes long; warnings among the reports have no time."""
    reports = [
        _report("tests/test_a.py::one[x::y]", 0.6 * SLOW_SECONDS),
        _report("tests/test_a.py::one[x::y]", 0.6 * SLOW_SECONDS),
        _report("tests/test_a.py::two", 0.6 * SLOW_SECONDS),
        SimpleNamespace(nodeid="tests/test_a.py::two"),
    ]
    assert slow_tests(reports) == {"tests/test_a.py": ["one[x::y]"]}


def test_recorded_tests_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a record that nobody reads: test-fast would take minutes again; and against
    a test of minutes that begins as the last one."""
    values = {"seconds": 0.3, "tests": {"tests/test_a.py": ["one[x::y]"]}}
    (tmp_path / "slow.json").write_text(json.dumps({"where": {}, "values": values}))
    assert recorded_slow(tmp_path / "none") == frozenset()
    monkeypatch.setattr(conftest, "RECORDS", tmp_path)
    marks: dict[str, list[str]] = {}
    names, long = ("one[x::y]", "two"), "tests/test_equality.py::test_all"
    items: list[Any] = [
        SimpleNamespace(
            nodeid=nodeid,
            path=Path(nodeid.split("::")[0]),
            add_marker=lambda mark, nodeid=nodeid: marks.setdefault(nodeid, []).append(mark.name),
        )
        for nodeid in (*(f"tests/test_a.py::{name}" for name in names), long)
    ]
    conftest.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [long, *(f"tests/test_a.py::{n}" for n in names)]
    assert marks == {"tests/test_a.py::one[x::y]": ["slow"]}
