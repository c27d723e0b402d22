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
    """Guards against a record that nobody reads: test-fast would take minutes again."""
    values = {"seconds": 0.3, "tests": {"tests/test_a.py": ["one[x::y]"]}}
    (tmp_path / "slow.json").write_text(json.dumps({"where": {}, "values": values}))
    assert recorded_slow(tmp_path / "none") == frozenset()
    monkeypatch.setattr(conftest, "RECORDS", tmp_path)
    marks: dict[str, list[str]] = {}
    items: list[Any] = [
        SimpleNamespace(
            nodeid=nodeid,
            add_marker=lambda mark, nodeid=nodeid: marks.setdefault(nodeid, []).append(mark.name),
        )
        for nodeid in ("tests/test_a.py::one[x::y]", "tests/test_a.py::two")
    ]
    conftest.pytest_collection_modifyitems(items)
    assert marks == {"tests/test_a.py::one[x::y]": ["slow"]}
