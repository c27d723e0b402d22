"""A tuning run over many shapes; the table is written after each, so that a cut run keeps it."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch
import triton
import typer

from rlt_kernels.tiles import DTYPE_BYTES, Key, Tile
from rlt_kernels.tune.candidates import REFERENCE, first_tiles, next_tiles
from rlt_kernels.tune.compiling import compile_all, compilers
from rlt_kernels.tune.shapes import Shape
from rlt_kernels.tune.tuner import Bench, Result


class Session:
    """A run over many shapes; the table is written after each, so that a cut run keeps it."""

    def __init__(
        self, out: Path, log: Path | None, *, quick: bool, special: bool, device: str = "cuda"
    ) -> None:
        self.out, self.log, self.quick, self.special = out, log, quick, special
        self.device = device
        self.entries = _old_entries(out)
        self.start = time.monotonic()

    def run(self, shapes: list[Shape], rows: list[int], dtype: str) -> None:
        keys = {
            shape: [
                Key(op=shape.op, dtype=dtype, n=shape.n, k=shape.k, rows=count)
                for count in rows
                if count <= shape.most_rows
            ]
            for shape in shapes
        }
        tiles = {k: first_tiles(k, special=self.special) for ks in keys.values() for k in ks}
        if self.quick:
            tiles = {key: found[::3] for key, found in tiles.items()}
        with compilers() as self.pool:
            tasks = [(key, tile) for key, found in tiles.items() for tile in [REFERENCE, *found]]
            errors = compile_all(self.pool, _once(tasks))
            typer.echo(f"compiled {len(tasks)} tiles, {len(errors)} refused: {self._seconds()}")
            for shape in shapes:
                self._shape(shape, keys[shape], tiles, errors)

    def _shape(
        self,
        shape: Shape,
        keys: list[Key],
        tiles: dict[Key, list[Tile]],
        errors: dict[tuple[Key, Tile], str],
    ) -> None:
        if not keys:
            return
        bench = Bench(keys[0], max(key.rows for key in keys), self.device)
        results = [Result(key=key) for key in keys]
        for result in results:
            key = result.key
            bench.try_tiles(result, tiles[key], _of_shape(errors, key))
            result.cublas_micros = bench.time_cublas(key)
        if not self.quick:
            more = {result.key: _second_tiles(result, results) for result in results}
            tasks = [(key, tile) for key, found in more.items() for tile in found]
            errors = compile_all(self.pool, _once(tasks))
            for result in results:
                bench.try_tiles(result, more[result.key], _of_shape(errors, result.key))
        for result in results:
            typer.echo(_line(shape, result) + self._seconds())
            if result.best(1):
                self.entries[result.key] = result.entry()
            self._log(result)
        self._write()

    def _write(self) -> None:
        table = {
            "chip": torch.cuda.get_device_name() if self.device == "cuda" else self.device,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "entries": list(self.entries.values()),
        }
        lines = ",\n".join(json.dumps(entry) for entry in table.pop("entries"))
        head = json.dumps(table)[:-1]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(f'{head}, "entries": [\n{lines}\n]}}\n')

    def _log(self, result: Result) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def _seconds(self) -> str:
        return f"[{time.monotonic() - self.start:.0f} s]"


def _second_tiles(result: Result, results: list[Result]) -> list[Tile]:
    """Changes of the fastest tiles, and what is fastest at the shape's other row counts."""
    known = {trial.tile for trial in result.trials}
    changed = next_tiles([trial.tile for trial in result.best(3)], result.key)
    others = [trial.tile for other in results for trial in other.best(2)]
    return [tile for tile in dict.fromkeys([*changed, *others]) if tile not in known]


def _line(shape: Shape, result: Result) -> str:
    key = result.key
    head = f"{shape.name:8} n={key.n:<6} k={key.k:<5} rows={key.rows:<5}"
    problems = Counter(trial.problem for trial in result.trials if trial.problem)
    reported = "".join(f"; {count} x {problem}" for problem, count in problems.items())
    tried = f" of {len(result.trials)} tiles{reported}"
    if not result.best(1):
        return f"{head} no tile works{tried} "
    best = result.best(1)[0]
    size, wide = DTYPE_BYTES[key.dtype], key.n * (2 if key.op == "linear_silu_mul" else 1)
    moved = (wide * key.k + key.rows * (key.k + key.n)) * size
    operations = 2 * key.rows * wide * key.k
    rate = f"{moved / best.micros / 1e3:6.0f} GB/s {operations / best.micros / 1e6:4.0f} TFLOP/s"
    beside = f"cuBLAS {result.cublas_micros:8.2f} us"
    return f"{head} {best.micros:8.2f} us {rate} {beside}  {best.tile.as_dict()}{tried} "


def _once(tasks: list[tuple[Key, Tile]]) -> list[tuple[Key, Tile]]:
    """Tasks without those that compile to the same kernel: the row bucket is not in it."""
    kept: dict[tuple[object, ...], tuple[Key, Tile]] = {}
    for key, tile in tasks:
        kept.setdefault((key.op, key.dtype, key.n % 16, key.k, tile), (key, tile))
    return list(kept.values())


def _of_shape(errors: dict[tuple[Key, Tile], str], key: Key) -> dict[Tile, str]:
    same = (key.op, key.dtype, key.n % 16, key.k)
    return {
        tile: error
        for (other, tile), error in errors.items()
        if (other.op, other.dtype, other.n % 16, other.k) == same
    }


def _old_entries(out: Path) -> dict[Key, dict[str, object]]:
    """What the table holds already; the keys of this run are replaced in it."""
    if not out.is_file():
        return {}
    names = ("op", "dtype", "n", "k", "rows")
    entries = json.loads(out.read_text())["entries"]
    return {Key(**{name: entry[name] for name in names}): entry for entry in entries}
