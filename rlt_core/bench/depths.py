"""Exit depths for `rlt bench depth`: drawn from a distribution, or recorded.

For a model of D loops, every token on its own unless something else is said:

- uniform: 1 to D, each as likely. Mean (D + 1) / 2.
- bimodal: 1 or D, each as likely. Mean (D + 1) / 2.
- clustered: a request has a centre, drawn uniformly from 1 to D; each of its tokens takes the
  centre with probability 0.8, one less or one more with 0.1 each, kept within 1 to D. Mean
  (D + 1) / 2: the requests differ, the tokens of one hardly do.
- gate: 1 + a binomial draw of D - 1 trials whose mean makes the whole 0.6 D, which is 2.4 of 4
  (probabilities 0.152, 0.398, 0.348, 0.102): one hump, as a trained exit gate gives. Where 0.6 D
  is below 1, all are 1.

Request i draws from numpy's default_rng((seed, i)). Recorded depths are a JSON-lines file, a
request a line: a list of depths, or an object with `exit_depths` as `rlt run --json` prints it.
Request i takes line i, round and round, and repeats it when it is longer than the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator

from rlt_core.contract.errors import OptionError
from rlt_core.runtime.batch import I32, I64

GATE_SHARE = 0.6
_CENTRE, _NEXT = 0.8, 0.1
Draw = Callable[[Generator, int, int], I64]


class Depths(Protocol):
    """Where the depths of requests come from."""

    @property
    def name(self) -> str: ...

    def mean(self, loops: int) -> float:
        """The mean depth to expect."""
        ...

    def trace(self, request: int, loops: int, count: int) -> I32:
        """The depths of `count` outputs of a request, each from 1 to `loops`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Depths of one of DISTRIBUTIONS."""

    name: str
    seed: int = 0

    def mean(self, loops: int) -> float:
        """See the module's docstring."""
        return 1 + (loops - 1) * _gate_chance(loops) if self.name == "gate" else (loops + 1) / 2

    def trace(self, request: int, loops: int, count: int) -> I32:
        """int32 [count]."""
        rng = np.random.default_rng((self.seed, request))
        return DISTRIBUTIONS[self.name](rng, loops, count).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """Every token takes all loops. spread: request i takes its second output after 1 + i mod D of
    them, so that in every tick one D-th of the requests leave, as under a steady load."""

    spread: bool = False
    name: str = "full"

    def mean(self, loops: int) -> float:
        """D."""
        return float(loops)

    def trace(self, request: int, loops: int, count: int) -> I32:
        """int32 [count]; the first output is the prompt's."""
        depths = np.full(count, loops, np.int32)
        if self.spread:
            depths[1:2] = 1 + request % loops
        return depths


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOne:
    """Every token leaves after one loop."""

    name: str = "one"

    def mean(self, loops: int) -> float:
        """1."""
        return 1.0

    def trace(self, request: int, loops: int, count: int) -> I32:
        """int32 [count]."""
        return np.ones(count, np.int32)


class Recorded:
    """Depths of a file; OptionError names the line that is wrong."""

    def __init__(self, path: str, loops: int) -> None:
        self.name = Path(path).name
        self._path = path
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("--depths", path, f"cannot be read: {error}") from error
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not numbered:
            raise OptionError("--depths", path, "it holds no depths", _FIX)
        self._traces = [self._read(number, line, loops) for number, line in numbered]

    def mean(self, loops: int) -> float:
        """Of all recorded depths."""
        return float(np.concatenate(self._traces).mean())

    def trace(self, request: int, loops: int, count: int) -> I32:
        """int32 [count]."""
        return np.resize(self._traces[request % len(self._traces)], count)

    def _read(self, number: int, line: str, loops: int) -> I32:
        try:
            found: Any = json.loads(line)
        except ValueError:
            raise self._wrong(number, "is no JSON") from None
        if isinstance(found, dict):
            found = found.get("exit_depths")
        whole = isinstance(found, list) and all(type(depth) is int for depth in found)
        if not whole or not found:
            raise self._wrong(number, "is no list of depths, and has no list `exit_depths`")
        wrong = [depth for depth in found if not 1 <= depth <= loops]
        if wrong:
            raise self._wrong(number, f"has depth {wrong[0]}; the model has {loops} loops")
        return np.array(found, np.int32)

    def _wrong(self, number: int, reason: str) -> OptionError:
        return OptionError("--depths", self._path, f"line {number} {reason}", _FIX)


_FIX = "Fix: one request a line, as [4, 2, 3]"


def _uniform(rng: Generator, loops: int, count: int) -> I64:
    return rng.integers(1, loops + 1, count)


def _bimodal(rng: Generator, loops: int, count: int) -> I64:
    return np.where(rng.random(count) < 0.5, 1, loops)


def _clustered(rng: Generator, loops: int, count: int) -> I64:
    centre = rng.integers(1, loops + 1)
    step = rng.choice((-1, 0, 1), count, p=(_NEXT, _CENTRE, _NEXT))
    depths: I64 = np.clip(centre + step, 1, loops)
    return depths


def _gate(rng: Generator, loops: int, count: int) -> I64:
    return 1 + rng.binomial(loops - 1, _gate_chance(loops), count)


def _gate_chance(loops: int) -> float:
    return max(0.0, GATE_SHARE * loops - 1) / max(loops - 1, 1)


DISTRIBUTIONS: dict[str, Draw] = {
    "uniform": _uniform,
    "bimodal": _bimodal,
    "clustered": _clustered,
    "gate": _gate,
}
