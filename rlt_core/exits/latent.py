"""Policy `latent`: leave when a loop moves the state by less than a fraction of its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec
from rlt_core.exits.row_math import row_norm

if TYPE_CHECKING:
    from torch import Tensor


class Latent:
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
        """|now - before| / |now| < threshold; a state of zeros (0 / 0) does not leave."""
        now, before = signals["state"].float(), signals["state_before"].float()
        return row_norm(now - before) / row_norm(now) < params["exit_threshold"], {}
