"""Write down what a run found, for docs/validation.md: `RLT_RECORD=DIR pytest ...`.

Without RLT_RECORD nothing is written, so an ordinary test run leaves no trace.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

RECORD_VARIABLE = "RLT_RECORD"
SLOW_SECONDS = 0.15  # `make test-fast` leaves out what takes longer
FAULT = "planted fault"  # the property in which a test reports a fault and how it was seen


def record(name: str, values: dict[str, object]) -> None:
    """Write `values` (JSON plain: numbers, strings, lists, dicts) to `$RLT_RECORD/NAME.json`.

    The day, the commit, the Python version and the machine are added; a record of the same name is
    replaced. Does nothing when RLT_RECORD is unset or empty.
    """
    folder = os.environ.get(RECORD_VARIABLE)
    if not folder:
        return
    where = {
        "day": date.today().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else "unknown",
    }
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"where": where, "values": values}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """conftest.py's hook: the counts of a whole run (no file, -k or -m given) as record "tests",
    those that the equality matrix printed as record "equality", and the planted faults as
    "faults". It runs once, after the tests of all processes (pytest -n), in whatever order."""
    stats = terminalreporter.stats
    counts = {kind: len(stats.get(kind, ())) for kind in _KINDS}
    passed = [report for report in stats.get("passed", ()) if report.when == "call"]
    if passed and _is_whole(terminalreporter.config):
        record("tests", {**counts, "files": len({report.fspath for report in passed})})
        record("slow", {"seconds": SLOW_SECONDS, "tests": slow_tests(chain(*stats.values()))})
    for report in passed:
        if report.nodeid.endswith("::test_the_equality_matrix"):
            record("equality", printed_counts(report.capstdout))
    faults = [fault for report in passed for name, fault in report.user_properties if name == FAULT]
    if faults:
        record("faults", {"faults": sorted(faults, key=lambda fault: str(fault["fault"]))})


def printed_counts(text: str) -> dict[str, object]:
    """Lines such as "mixed_ticks    812" as a table; other lines are left out."""
    found = re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)
    return {name.replace("_", " "): int(value) for name, value in found}


def recorded_slow(folder: Path) -> frozenset[str]:
    """Node ids that a whole run found to be slow, by the record in `folder`; none without one."""
    path = folder / "slow.json"
    if not path.is_file():
        return frozenset()
    tests = json.loads(path.read_text(encoding="utf-8"))["values"]["tests"]
    return frozenset(f"{file}::{name}" for file, names in tests.items() for name in names)


def slow_tests(reports: Iterable[Any]) -> dict[str, list[str]]:
    """Names by file of all tests that took longer than SLOW_SECONDS, with what was set up."""
    seconds: Counter[str] = Counter()
    for report in reports:
        if hasattr(report, "nodeid") and hasattr(report, "duration"):
            seconds[report.nodeid] += report.duration
    found: dict[str, list[str]] = {}
    for nodeid in sorted(id_ for id_, took in seconds.items() if took > SLOW_SECONDS):
        file, _, name = nodeid.partition("::")
        found.setdefault(file, []).append(name)
    return found


def _is_whole(config: Any) -> bool:
    """Whether nothing was chosen but what `make test` leaves to commands of their own."""
    usual = config.option.markexpr in ("", "not server and not browser")
    chosen = config.option.keyword or not usual
    return not chosen and config.args_source is config.ArgsSource.TESTPATHS


_KINDS = ("passed", "failed", "error", "skipped", "xfailed")


def _commit() -> str:
    """The commit, "-dirty" where anything but the records has changed since."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs/records")
    return (_git("describe", "--always") or "unknown") + ("-dirty" if changed else "")


def _git(*command: str) -> str:
    argv = ["git", "-C", str(Path(__file__).parent), *command]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
