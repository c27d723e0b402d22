"""Policy `gate`: leave when the accumulated exit probability reaches the threshold.

The gate gives a hazard, so the quantity compared is 1 - prod(1 - p) over the loops so far
(Ouro, arXiv 2510.25741), and all of it is float32 whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec

if TYPE_CHECKING:
    from torch import Tensor


class Gate:
    """Reads signal `gate` (raw logit [R], any float dtype) and `exit_threshold` float32 [R].

    A threshold of 1 never leaves early: a logit of 17 already makes a float32 probability 1.
    A threshold of 0 leaves at the first loop allowed.
    """

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """`remaining`: the probability of not having left before, from 1."""
        return (StateSpec(name="remaining", initial=1.0),)

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(threshold < 1 and cdf >= threshold, new `remaining`)."""
        # Not torch.sigmoid: its bits change with the element's place in the tensor.
        hazard = 1.0 / (1.0 + (-signals["gate"].float()).exp())
        remaining = state["remaining"] * (1.0 - hazard)
        threshold = params["exit_threshold"]
        return (threshold < 1.0) & (1.0 - remaining >= threshold), {"remaining": remaining}
