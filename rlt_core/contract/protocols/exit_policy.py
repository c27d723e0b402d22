"""When a row exits. Shapes: R rows, N state_width, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Per-row state of a policy: shape after the row dimension, dtype's name, start value.

    The core resets it when a row enters at depth 1.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: Literal["float32", "int64", "bool"] = "float32"
    initial: float = 0.0


class ExitPolicy(Protocol):
    """When a row exits. Minimum and maximum depth are the core's."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """The per-row tensors it keeps between loops of one token."""
        ...

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(exit bool [R], new state). Pure: no argument is changed, nothing read to the host.

        signals hold what the spec needs: `gate` [R]; `state` and `state_before` [R, N], the
        model's state after the loop just run and before it (before the first loop what the
        prelude gave); `logits` float32 [R, V]. A row's bits may depend on that row alone.
        params hold one value per row ([R]); a "depths" parameter gives the row's own entry.
        depth int64 [R] counts the loop just run.
        """
        ...
