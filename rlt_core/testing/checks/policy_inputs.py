"""What checks ask a policy: random signals, its own state, values of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlt_core.contract.protocols import ExitPolicy, StateSpec
from rlt_core.contract.specs import ExitPolicySpec, ParamSpec
from rlt_core.testing.checks.check import CheckFailed
from rlt_core.testing.checks.subjects import SEED

NUM_ROWS, VOCAB, WIDTH, LOOPS = 64, 40, 24, 4
# How far a signal moves from loop to loop, row by row: policies compare two loops.
_MOVES = (2.0, 0.3, 1e-2, 1e-4)
V = TypeVar("V")


class OnlyThese(dict[str, V]):
    """A mapping that says which name was asked for and is not there."""

    def __init__(self, what: str, given: Mapping[str, V]) -> None:
        super().__init__(given)
        self.what = what

    def __missing__(self, name: str) -> V:
        there = ", ".join(sorted(self)) or "none"
        raise CheckFailed(f"decide to read what its spec declares ({self.what}: {there})", name)


@dataclass(slots=True)
class Asked:
    """The arguments of one `decide`, for R rows."""

    signals: dict[str, Tensor]
    state: dict[str, Tensor]
    params: dict[str, Tensor]
    depth: Tensor

    def decide(self, policy: ExitPolicy) -> tuple[Any, Any]:
        """The policy's answer."""
        return policy.decide(
            OnlyThese("signals", self.signals),
            OnlyThese("state", self.state),
            OnlyThese("params", self.params),
            self.depth,
        )

    def rows(self, at: Tensor) -> Asked:
        """The same of some rows, in that order."""

        def take(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[at] for name, value in tensors.items()}

        return Asked(take(self.signals), take(self.state), take(self.params), self.depth[at])

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        return {**self.signals, **self.state, **self.params, "depth": self.depth}


def loops_of_signals(spec: ExitPolicySpec) -> list[dict[str, Tensor]]:
    """The declared signals after each of four loops; rows settle at different paces."""
    draw = torch.Generator().manual_seed(SEED)
    shapes = {"gate": (), "state": (WIDTH,), "logits": (VOCAB,)}
    needed = {name: shape for name, shape in shapes.items() if name in spec.needs}
    moves = torch.tensor(_MOVES).repeat(NUM_ROWS // len(_MOVES))
    now = {n: torch.randn((NUM_ROWS, *s), generator=draw) for n, s in needed.items()}
    made = [now]
    for _ in range(LOOPS - 1):
        step = {n: torch.randn((NUM_ROWS, *s), generator=draw) for n, s in needed.items()}
        now = {n: now[n] + _rows_of(moves, step[n]) * step[n] for n in needed}
        made.append(now)
    return [_with_before(*pair) for pair in zip(made, [made[0], *made], strict=False)]


def start_state(specs: Any, num_rows: int = NUM_ROWS) -> dict[str, Tensor]:
    """The policy's state of rows that have just entered."""
    return {spec.name: _full(spec, num_rows) for spec in specs}


def values_of(spec: ExitPolicySpec, where: str) -> dict[str, Tensor]:
    """Every parameter [R]: at its "low" or "high" end, its "default", or "mixed" over both."""
    low = {param.name: _value(param, 0) for param in spec.params}
    high = {param.name: _value(param, 1) for param in spec.params}
    default = {p.name: default_of(p) for p in spec.params}
    chosen = {"low": low, "high": high, "default": default}.get(where)
    if chosen is not None:
        return {p.name: _filled(p, chosen[p.name]) for p in spec.params}
    odd = torch.arange(NUM_ROWS) % 2 == 1
    return {
        p.name: torch.where(odd, _filled(p, high[p.name]), _filled(p, low[p.name]))
        for p in spec.params
    }


def default_of(param: ParamSpec) -> float:
    """Its default, or the middle of its range where the checkpoint gives it."""
    if param.default is not None:
        return float(param.default)
    low, high = _value(param, 0), _value(param, 1)
    return (low + high) / 2 if param.kind == "float" and high < 1e3 else low


def _rows_of(moves: Tensor, like: Tensor) -> Tensor:
    return moves.view(-1, *([1] * (like.ndim - 1)))


def _with_before(now: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, Tensor]:
    """With `state` the core gives the state before the loop as well."""
    return {**now, "state_before": before["state"]} if "state" in now else now


def _full(spec: StateSpec, num_rows: int) -> Tensor:
    return torch.full((num_rows, *spec.shape), spec.initial, dtype=getattr(torch, spec.dtype))


def _filled(param: ParamSpec, value: float) -> Tensor:
    # The core keeps scalars in float32 and depths in int64 (runtime.slots).
    dtype = torch.int64 if param.kind == "depths" else torch.float32
    return torch.full((NUM_ROWS,), value, dtype=dtype)


def _value(param: ParamSpec, end: int) -> float:
    """The lowest or highest value, or one far off where there is no end."""
    bound = (param.minimum, param.maximum)[end]
    size = max(1.0, abs(param.default or 1.0))
    if bound is None:
        value = (-1e3 if end == 0 else 1e3) * size
        return float(int(value)) if param.kind != "float" else value
    if end == 0 and param.exclusive_minimum:
        return bound + (1e-9 if param.kind == "float" else 1)
    return bound
