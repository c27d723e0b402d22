"""Policy `cosine`: leave when a loop hardly turns the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec
from rlt_core.exits.row_math import row_norm, row_sum

if TYPE_CHECKING:
    from torch import Tensor


class Cosine:
    """Reads `state` and `state_before` [R, N], any float dtype, and `exit_threshold` float32 [R].

    The first loop is compared with the state that the prelude gave. Strictly below leaves.
    """

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """None is kept: the core has the state before the loop."""
        return ()

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """1 - cos(now, before) < threshold; from a state of zeros (NaN) no row leaves.

        Computed as half the squared distance of the two directions: float32 keeps the digits of
        a small angle so, and loses them in 1 - cos.
        """
        now, before = (signals[name].float() for name in ("state", "state_before"))
        apart = now / row_norm(now)[:, None] - before / row_norm(before)[:, None]
        return row_sum(apart * apart) * 0.5 < params["exit_threshold"], {}
