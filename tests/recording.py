"""Write down what a run found, for docs/validation.md: `RLT_RECORD=DIR pytest ...`.

Without RLT_RECORD nothing is written, so an ordinary test run leaves no trace.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from pathlib import Path

RECORD_VARIABLE = "RLT_RECORD"


def record(name: str, values: dict[str, object]) -> None:
    """Write `values` (JSON plain: numbers, strings, lists, dicts) to `$RLT_RECORD/NAME.json`.

    The day, the Python version and the number of cores are added; a record of the same name is
    replaced. Does nothing when RLT_RECORD is unset or empty.
    """
    folder = os.environ.get(RECORD_VARIABLE)
    if not folder:
        return
    where = {
        "day": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"where": where, "values": values}, indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
