"""`rlt kernels`: which products are tuned, for which chip."""

from __future__ import annotations

import json
from importlib import resources
from typing import Annotated, Any

import typer

from rlt_kernels.tiles import table_name

HEAD = ("OPERATOR", "DTYPE", "RESULTS", "INNER", "ROWS", "US", "TILE")


def kernels(
    chip: Annotated[
        str | None, typer.Option("--chip", help="A chip's name; default: this machine's GPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the matrix products whose tiles are tuned for a chip.

    US are the microseconds that the tuner measured. Other shapes, and other chips, use a tile that
    is guessed from the shape: the same bits, often slower. Tune with: python -m rlt_kernels.tune
    """
    tables = tuned_tables()
    wanted = chip or this_chip()
    table = tables.get(table_name(wanted or ""))
    if as_json:
        typer.echo(json.dumps({"chip": wanted, "chips": chips(tables), "table": table}))
        return
    if wanted is None:
        typer.echo("no CUDA device here; --chip NAME shows another machine's table")
    elif table is None:
        typer.echo(f"nothing is tuned for {wanted}: all tiles are guessed from the shapes")
    if table is None:
        typer.echo(f"tuned: {', '.join(chips(tables)) or 'no chip yet'}")
        return
    typer.echo(f"{table['chip']}, torch {table['torch']}, triton {table['triton']}")
    for line in lines(table):
        typer.echo(line)


def tuned_tables() -> dict[str, dict[str, Any]]:
    """The package's tables by file name without its ending."""
    folder = resources.files("rlt_kernels") / "tuned"
    if not folder.is_dir():
        return {}
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return {file.name.removesuffix(".json"): json.loads(file.read_text()) for file in files}


def chips(tables: dict[str, dict[str, Any]]) -> list[str]:
    """The names of the chips."""
    return [str(table["chip"]) for table in tables.values()]


def this_chip() -> str | None:
    """The name of this machine's first GPU; None where there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def lines(table: dict[str, Any]) -> list[str]:
    """Columns, the widest products last."""
    keys = ("op", "dtype", "n", "k", "rows")
    entries = sorted(table["entries"], key=lambda entry: [entry[key] for key in keys])
    cells = [
        (*(str(entry[key]) for key in keys), f"{entry['us']:.2f}", _tile(entry["tile"]))
        for entry in entries
    ]
    rows = [HEAD, *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def _tile(tile: dict[str, Any]) -> str:
    """bm x bn x bk and whatever else is set."""
    sizes = f"{tile['bm']}x{tile['bn']}x{tile['bk']}"
    rest = {key: value for key, value in tile.items() if key not in ("bm", "bn", "bk", "kind")}
    return " ".join([tile["kind"], sizes, *(f"{key}={value}" for key, value in rest.items())])
