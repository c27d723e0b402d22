"""The tables of validation.md: what the records in docs/records hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.generate import registry_of_ours, table
from rlt_core.plugins.model_folder import find_checkpoint

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
    """The golden checkpoints that the tests hold the engine to, as the plugins read them."""
    registry, rows = registry_of_ours(), []
    for folder in sorted((HERE.parent / "tests" / "golden").iterdir()):
        if not (folder / "config.json").is_file():
            continue
        found = find_checkpoint(str(folder), None, registry)
        shape = found.shape(registry, frozenset())
        tracks = (f"{t.name} {t.num_layers}x{t.num_kv_heads}x{t.head_dim}" for t in shape.tracks)
        row = (found.model.id, str(shape.loops), str(shape.vocab_size), ", ".join(tracks))
        rows.append((f"`{folder.name}`", *row))
    head = ("checkpoint", "model", "loops", "vocabulary", "tracks (layers x KV heads x head size)")
    return table(head, rows)


def _made(where: Mapping[str, object]) -> str:
    load = f", load average {where['load']}" if "load" in where else ""
    return "Commit {commit}, {day}, Python {python}, {machine}".format(**where) + f"{load}.\n"


def _rows(rows: Sequence[Mapping[str, object]]) -> str:
    head = list(dict.fromkeys(key for row in rows for key in row))
    return table(head, [[_number(row.get(key, "")) for key in head] for row in rows])


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
