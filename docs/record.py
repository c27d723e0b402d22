"""Measure what docs/validation.md reports beside the tests, and write it as records.

RLT_RECORD=docs/records python docs/record.py host     # host work of a tick, about a minute
RLT_RECORD=docs/records python docs/record.py demo     # the demo model, all held-out problems
RLT_RECORD=docs/records python -m pytest               # the tests write their own records
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rlt_core.bench.host import measure_host
from rlt_core.cli.bench import SLOTS
from rlt_core.evaluate.demo import Score, evaluate
from rlt_core.evaluate.problems import load_problems
from rlt_core.plugins.model_folder import find_model_folder
from tests.recording import record


def host() -> None:
    """`rlt bench host` as a record."""
    rows = []
    for slots in SLOTS:
        found = measure_host(slots)
        rows.append(
            {
                "slots": found.num_slots,
                "mean µs": round(found.mean),
                "p50 µs": round(found.p50),
                "p99 µs": round(found.p99),
                "tokens a tick": round(found.tokens_per_tick, 1),
                "ends a tick": round(found.ends_per_tick, 2),
            }
        )
    record("host", {"rows": rows})


def demo() -> None:
    """`rlt eval demo` as a record, a row per engine and setting."""
    folder = find_model_folder(None)
    problems = load_problems(Path(folder))
    record(
        "demo", {"problems": len(problems), "rows": demo_rows(evaluate(folder, problems, print))}
    )


def demo_rows(scores: Iterable[Score]) -> list[dict[str, object]]:
    """Scores of grades and of all problems as one row per engine and setting, in percent."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for score in scores:
        row = rows.setdefault((score.engine, score.setting), {})
        row.update({"KV layout, exit mode": score.engine, "setting": score.setting})
        name = "all" if score.grade is None else f"grade {score.grade}"
        row[name] = round(100 * score.accuracy, 1)
        if score.grade is None:
            row.update(
                {"mean depth": round(score.depth, 2), "of values": round(score.value_depth, 2)}
            )
    return list(rows.values())


if __name__ == "__main__":
    {"host": host, "demo": demo}[sys.argv[1]]()
