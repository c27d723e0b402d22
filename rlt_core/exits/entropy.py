"""Policy `entropy`: leave when the entropy of the next token's distribution settles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec
from rlt_core.exits.row_math import log_probs, row_sum

if TYPE_CHECKING:
    from torch import Tensor

_START = 100.0  # nats: far above any distribution's, so that the first loop does not leave
_FLOOR = 1e-10  # added inside the logarithm, as the model authors of the rule do


class Entropy:
    """Reads `logits` float32 [R, V] and `exit_threshold` float32 [R], in nats."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """`entropy`: that after the loop before."""
        return (StateSpec(name="entropy", initial=_START),)

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(|change of the entropy| strictly below the threshold, new `entropy`)."""
        p = log_probs(signals["logits"]).exp()
        entropy = -row_sum(p * (p + _FLOOR).log())
        return (entropy - state["entropy"]).abs() < params["exit_threshold"], {"entropy": entropy}
