"""Which operators a model calls, with which shapes: found by running it without any data.

The model is built on torch's `meta` device, where tensors have shapes and no memory, and every
part runs once on one row. A call is what differs in shape; how often it stands in a loop is kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.protocols import ModelFactory, RopeSpec
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime import ops_torch

_META = torch.device("meta")
# Operator -> how many of its leading tensors are rows; the others are weights.
NUM_ROW_TENSORS = {
    "embed": 1,
    "linear": 1,
    "rms_norm": 1,
    "add_rms_norm": 2,
    "norm_add_norm": 2,
    "add_norm": 2,
    "silu_mul": 1,
    "linear_silu_mul": 1,
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with the shapes of its tensors: rows without their first dimension, weights
    whole. eps: what norms take last. For "attend" rows are ((H, d), (G, d), (G, d))."""

    op: str
    rows: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    eps: float | None = None
    rope: RopeSpec | None = None

    def label(self) -> str:
        """The shapes in a few signs: out x in of a product, else the row's width."""
        if self.op == "attend":
            (heads, size), (groups, _), _ = self.rows
            return f"{heads} heads, {groups} KV heads of {size}"
        if self.op in ("linear", "linear_silu_mul", "embed"):
            bias = " + bias" if len(self.weights) > 1 else ""
            return " x ".join(map(str, self.weights[0])) + bias
        return " x ".join(map(str, self.rows[0]))


def record_calls(plan: Plan) -> dict[str, Counter[Call]]:
    """{"prelude", "loop", "coda", "head": calls and how often}, for the plan's model; a gate's
    calls stand with the loop's."""
    factory: ModelFactory = load_object(plan.model.factory)
    dtype = getattr(torch, plan.dtype)
    model = factory(plan.shape, device=_META, dtype=dtype)
    found: dict[str, Counter[Call]] = {}
    with torch.inference_mode():
        state = torch.zeros(1, dtype=torch.int64, device=_META)
        for part in ("prelude", "loop", "coda", "head"):
            calls = found[part] = Counter[Call]()
            ctx: Any = _Context(plan, calls, dtype)
            state = getattr(model, part)(state, ctx)
            if part == "loop" and Word.GATE in plan.model.provides:
                model.signals(state, state, ctx, frozenset({Word.GATE}))
    return found


class _Operators:
    """Plain torch, with every call noted."""

    def __init__(self, calls: Counter[Call]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        run = getattr(ops_torch, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            tensors = [arg for arg in given if isinstance(arg, Tensor)]
            num = NUM_ROW_TENSORS[name]
            call = Call(
                op=name,
                rows=tuple(tuple(t.shape[1:]) for t in tensors[:num]),
                weights=tuple(tuple(t.shape) for t in tensors[num:]),
                eps=next((arg for arg in given if isinstance(arg, float)), None),
            )
            self._calls[call] += 1
            return run(*args, **kwargs)

        return noted


class _Context:
    """protocols.LoopContext of one row on the meta device."""

    def __init__(self, plan: Plan, calls: Counter[Call], dtype: torch.dtype) -> None:
        self._plan, self._calls, self._dtype = plan, calls, dtype
        self.ops = _Operators(calls)
        self.positions = torch.zeros(1, dtype=torch.int64, device=_META)
        self.depth = torch.zeros(1, dtype=torch.int64, device=_META)

    def attend(self, track: str, layer: int, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        rows = tuple(tuple(t.shape[1:]) for t in (q, k, v))
        self._calls[Call(op="attend", rows=rows, rope=how.get("rope"))] += 1
        return torch.empty(q.shape, dtype=q.dtype, device=_META)

    def random_bits(self, purpose: int, count: int) -> Tensor:
        return torch.zeros(1, count, dtype=torch.int64, device=_META)

    def option(self, name: str) -> Tensor:
        default = next(spec.default for spec in self._plan.model.options if spec.name == name)
        return torch.tensor([default], device=_META)

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        return self._row(self._plan.shape.table_widths[name])

    def previous(self) -> tuple[Tensor, Tensor]:
        return self._row(self._plan.shape.state_width)

    def _row(self, width: int) -> tuple[Tensor, Tensor]:
        """(zeros [1, width], not given)."""
        given = torch.zeros(1, dtype=torch.bool, device=_META)
        return torch.zeros(1, width, dtype=self._dtype, device=_META), given
