"""Policy `kl`: leave when the next token's distribution hardly moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec
from rlt_core.exits.row_math import divergence, log_probs, uniform

if TYPE_CHECKING:
    from torch import Tensor


class KL:
    """Reads `logits` float32 [R, V] and `exit_threshold` float32 [R], in nats."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """`log_probs` [V]: those after the loop before, uniform before the first."""
        return (StateSpec(name="log_probs", shape=(vocab_size,), initial=uniform(vocab_size)),)

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(divergence from before to now strictly below the threshold, new `log_probs`)."""
        now = log_probs(signals["logits"])
        leaves = divergence(state["log_probs"], now) < params["exit_threshold"]
        return leaves, {"log_probs": now}
