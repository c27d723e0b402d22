"""One shape at one row count: try tiles, drop those with other bits, keep the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlt_kernels.norms import rms_norm
from rlt_kernels.products import make_launch
from rlt_kernels.tiles import Key, Tile
from rlt_kernels.tune.candidates import REFERENCE
from rlt_kernels.tune.timing import graph_micros, num_copies

# Products of up to so many rows are timed as a layer has them, each behind a norm: what a tile asks
# for ahead then comes while the norm runs, and not in place of what the product in front needs.
_BEHIND_NORM = 256


@dataclass(slots=True, kw_only=True)
class Trial:
    """What became of one tile: microseconds (0 where none were measured), or why it is out."""

    tile: Tile
    micros: float = 0.0
    problem: str = ""


@dataclass(slots=True, kw_only=True)
class Result:
    """All trials of one key. cublas_micros: the bare product, without any epilogue."""

    key: Key
    trials: list[Trial] = field(default_factory=list)
    cublas_micros: float = 0.0

    def best(self, count: int) -> list[Trial]:
        """The fastest `count` tiles that gave the right bits."""
        good = [trial for trial in self.trials if not trial.problem]
        return sorted(good, key=lambda trial: trial.micros)[:count]

    def entry(self) -> dict[str, Any]:
        """The table's line for this key."""
        key, best = self.key, self.best(1)[0]
        sizes = {"op": key.op, "dtype": key.dtype, "n": key.n, "k": key.k, "rows": key.rows}
        return {**sizes, "us": round(best.micros, 2), "tile": best.tile.as_dict()}


class Bench:
    """The tensors of one (operator, n, k): several weights, and rows for any bucket."""

    def __init__(self, key: Key, most_rows: int, device: str = "cuda", seed: int = 0) -> None:
        torch.manual_seed(seed)
        dtype = getattr(torch, key.dtype)
        wide = key.n * (2 if key.op == "linear_silu_mul" else 1)
        self.x = torch.randn(most_rows, key.k, device=device, dtype=dtype)
        first = torch.randn(wide, key.k, device=device, dtype=dtype) * key.k**-0.5
        count = num_copies(first.nbytes)
        self.weights = [first, *(first.clone() for _ in range(count - 1))]
        self.norm = torch.ones(key.k, device=device, dtype=dtype)
        self.out = torch.empty(most_rows, key.n, device=device, dtype=dtype)
        self.wide = torch.empty(most_rows, wide, device=device, dtype=dtype)

    def try_tiles(self, result: Result, tiles: Iterable[Tile], errors: dict[Tile, str]) -> None:
        """Add a trial for each tile to `result`."""
        wanted = self._output(result.key, REFERENCE)
        for tile in tiles:
            trial = Trial(tile=tile, problem=errors.get(tile, ""))
            result.trials.append(trial)
            if trial.problem:
                continue
            try:
                if not torch.equal(self._output(result.key, tile), wanted):
                    trial.problem = "other bits"
                trial.micros = self._time(self._launcher(result.key, tile), result.key)
            except Exception as error:
                trial.problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]

    def time_cublas(self, key: Key) -> float:
        """The library's product, of any bits."""
        x, out = self.x[: key.rows], self.wide[: key.rows]
        count = len(self.weights)
        return self._time(lambda i: torch.mm(x, self.weights[i % count].T, out=out), key)

    def _output(self, key: Key, tile: Tile) -> Tensor:
        self.out.fill_(float("nan"))
        self._launcher(key, tile)(0)
        return self.out[: key.rows].clone()

    def _launcher(self, key: Key, tile: Tile) -> Callable[[int], Any]:
        x, out = self.x[: key.rows], self.out[: key.rows]
        launch = make_launch(tile, key.op, x, key.n)
        count = len(self.weights)
        return lambda i: launch(x, self.weights[i % count], None, None, out)

    def _time(self, launch: Callable[[int], Any], key: Key) -> float:
        long = key.rows >= 2048
        launches = 4 if long else max(len(self.weights), 16)
        if key.rows > _BEHIND_NORM:
            return graph_micros(launch, launches=launches, replays=3 if long else 6)

        def both(index: int) -> None:
            self._norm(key)
            launch(index)

        alone = graph_micros(lambda index: self._norm(key), launches=launches, replays=6)
        return graph_micros(both, launches=launches, replays=6) - alone

    def _norm(self, key: Key) -> None:
        rms_norm(self.x[: key.rows], self.norm, 1e-6)
