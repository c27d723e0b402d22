"""Policy `minp_kl`: as `kl`, among the tokens that matter.

Every probability below a tenth of the largest one becomes 1 / V, then all are scaled to sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from rlt_core.contract.protocols import StateSpec
from rlt_core.exits.row_math import divergence, log_probs, row_sum, uniform

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 0.1  # of the largest probability


class MinPKL:
    """Reads `logits` float32 [R, V] and `exit_threshold` float32 [R], in nats."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """`log_probs` [V]: those after the loop before, cut alike; uniform before the first."""
        return (StateSpec(name="log_probs", shape=(vocab_size,), initial=uniform(vocab_size)),)

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(divergence from before to now strictly below the threshold, new `log_probs`)."""
        p = log_probs(signals["logits"]).exp()
        small = p < _LEAST * p.amax(-1, keepdim=True)
        cut = torch.where(small, 1.0 / p.shape[-1], p)
        now = (cut / row_sum(cut)[:, None]).log()
        leaves = divergence(state["log_probs"], now) < params["exit_threshold"]
        return leaves, {"log_probs": now}
