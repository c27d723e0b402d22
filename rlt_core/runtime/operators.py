"""The operators that a plan chose, as one object that models reach through their context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.plugins.kinds import OPERATORS
from rlt_core.plugins.loading import load_object

if TYPE_CHECKING:
    from rlt_core.plugins.plan import Plan


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class OperatorSet:
    """One callable per operator; fits contract.protocols.Operators, which says what each does."""

    embed: Callable[[Tensor, Tensor], Tensor]
    linear: Linear
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    norm_add_norm: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    add_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    linear_silu_mul: Callable[[Tensor, Tensor], Tensor]
    counted: frozenset[str] = frozenset()

    def limited(self, num_rows: Tensor) -> OperatorSet:
        """The same operators for launches of which the first num_rows (int32 [1]) rows matter:
        those that are `counted` leave the others' results unwritten."""
        changes: dict[str, Any] = {
            name: partial(getattr(self, name), num_rows=num_rows) for name in self.counted
        }
        return replace(self, **changes) if changes else self


def build_operators(plan: Plan) -> OperatorSet:
    """The plan's candidates, loaded. Raises PluginError when one cannot be."""
    found = {name: load_object(plan.ops[name].factory) for name in OPERATORS}
    counted = (name for name in OPERATORS if Word.NUM_ROWS in plan.ops[name].provides)
    return OperatorSet(**found, counted=frozenset(counted))
