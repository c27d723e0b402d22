"""The tables of validation.md: what the records in docs/records hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.generate import table

HERE = Path(__file__).resolve().parent


def record(name: str) -> str:
    """A record of docs/records: where it was made, its values, and its rows."""
    path = HERE / "records" / f"{name}.json"
    if not path.is_file():
        return "Not recorded yet.\n"
    found = json.loads(path.read_text(encoding="utf-8"))
    values = dict(found["values"])
    lists = {key: values.pop(key) for key in list(values) if isinstance(values[key], list)}
    parts = [_made(found["where"])]
    if values:
        parts.append(table(("what", "count"), [(key, _number(v)) for key, v in values.items()]))
    parts += [_rows(rows) for rows in lists.values()]
    return "\n".join(parts)


def golden() -> str:
    """The golden checkpoints that the tests hold the engine to."""
    rows = []
    for folder in sorted((HERE.parent / "tests" / "golden").iterdir()):
        if (folder / "config.json").is_file():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            names = ("num_hidden_layers", "total_ut_steps", "hidden_size", "num_attention_heads")
            shape = (str(config[name]) for name in names)
            rows.append((f"`{folder.name}`", *shape, str(config["num_key_value_heads"])))
    return table(("checkpoint", "layers", "loops", "hidden", "heads", "KV heads"), rows)


def _made(where: Mapping[str, object]) -> str:
    load = f", load average {where['load']}" if "load" in where else ""
    return "Commit {commit}, {day}, Python {python}, {machine}".format(**where) + f"{load}.\n"


def _rows(rows: Sequence[Mapping[str, object]]) -> str:
    head = list(dict.fromkeys(key for row in rows for key in row))
    return table(head, [[_number(row.get(key, "")) for key in head] for row in rows])


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
