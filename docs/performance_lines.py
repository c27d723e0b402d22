"""The lines of docs/records/performance-*.jsonl, by section of performance.md.

A line is what a benchmark of `rlt bench` prints with --json, or (bench "peer") what another engine
took for the same work on the same kind of GPU.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.generate import code

RECORDS = Path(__file__).resolve().parent / "records"
Line = dict[str, Any]
MISSING = "Not recorded yet.\n"
# Settings that lines of one table may differ in: a column names them, or they change no setting.
IN_ROWS = {"repeat", "seed", "rate", "depths", "num_requests", "duration"}


def read(folder: Path) -> list[Line]:
    """Every line of every record of performance, files by name."""
    files = sorted(folder.glob("performance-*.jsonl"))
    texts = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(text) for text in texts if text.strip()]


def sections(lines: Sequence[Line], bench: str, tables: Callable[[Sequence[Line]], str]) -> str:
    """Lines made on the same machine with the same versions and parts stand in one table."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line["bench"] == bench:
            groups.setdefault(json.dumps(_head(line), sort_keys=True), []).append(line)
    if not groups:
        return MISSING
    return "\n".join(f"{_made(found)}\n{tables(found)}" for found in groups.values())


def _head(line: Line) -> list[object]:
    same = {key: value for key, value in line["settings"].items() if key not in IN_ROWS}
    return [line["day"], line["machine"], line["versions"], same]


def _made(lines: Sequence[Line]) -> str:
    """Model, machine, versions, day, and the commands."""
    s, m = lines[0]["settings"], lines[0]["machine"]
    weights = "" if s["random_weights"] is None else " with random weights"
    gpu = f"{m['gpu']}, driver {m['driver']}" if "gpu" in m else f"{m['cpu']}, {m['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in lines[0]["versions"].items())
    strategy = f"strategy `{s['strategy']}`, " if "strategy" in s else ""
    kernels = code(_families(s["ops"].values()))
    commands = "\n".join(dict.fromkeys(line["command"] for line in lines))
    switches = f"exact {_on(s['exact'])}, graphs {_on(s['graphs'])}"
    return (
        f"`{s['folder']}` ({s['model']}){weights}, {s['loops']} loops, {s['dtype']}, layout "
        f"`{s['kv_layout']}`, {strategy}{switches}, attention `{s['attention']}`, operators "
        f"{kernels}, pages of {s['page_size']}. {gpu}; {versions}; {lines[0]['day']}.\n\n"
        f"```sh\n{commands}\n```\n"
    )


def _families(ops: Iterable[str]) -> list[str]:
    """Operators by name, but for the largest family: `triton.*`. The records name every one."""
    names = sorted(set(ops))
    if len(names) < 4:
        return names
    largest = Counter(name.split(".")[0] for name in names).most_common(1)[0][0]
    return [f"{largest}.*", *(name for name in names if name.split(".")[0] != largest)]


def comparable(peer: Line, line: Line) -> bool:
    """The same shape, dtype and kind of GPU."""
    keys = ("folder", "dtype")
    same = all(peer["settings"][key] == line["settings"][key] for key in keys)
    return same and peer["machine"].get("gpu") == line["machine"].get("gpu")


def peer_value(
    peers: Sequence[Line], name: str, context: int, batch: int, value: str, digits: int = 2
) -> str:
    found = [
        f"{peer['results'][value]:.{digits}f}"
        for peer in peers
        if (peer["engine"], peer["results"]["context"], peer["results"]["batch"])
        == (name, context, batch)
    ]
    return found[0] if found else ""


def skipped(r: Line) -> str:
    return f"does not fit: {str(r['skipped']).splitlines()[0]}"


def spread(values: dict[str, float], digits: int = 2) -> str:
    low, mid, high = (f"{values[name]:.{digits}f}" for name in ("min", "median", "max"))
    return f"{mid} ({low} to {high})"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _on(value: bool) -> str:
    return "on" if value else "off"
