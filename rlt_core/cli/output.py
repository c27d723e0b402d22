"""Plain columns and JSON for the commands that list things."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import typer


def columns(rows: Iterable[Sequence[str]], gap: int = 2) -> Iterator[str]:
    """Lines of left-aligned columns; the last column is as wide as it likes."""
    table = [tuple(row) for row in rows]
    if not table:
        return
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    for row in table:
        cells = [cell.ljust(width + gap) for cell, width in zip(row, widths, strict=False)]
        yield "".join([*cells, row[-1]]).rstrip()


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Write `columns` to stdout."""
    for line in columns(rows):
        typer.echo(line)


def print_json(data: object) -> None:
    """Write one JSON document to stdout."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
