"""A plugin that adds only an exit policy: `confident` leaves when the best token is likely enough.

Give a package this module and the entry point `confident = "rlt_confident"` of the group `rlt`,
then `rlt run --exit-policy confident --exit-threshold 0.8`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core import ExitPolicySpec, ParamSpec, StateSpec, Word, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

THRESHOLD = ParamSpec(
    name="exit_threshold",
    kind="float",
    summary="probability of the best token to leave at",
    default=0.9,
    minimum=0.0,
    maximum=1.0,
)


@hookimpl
def rlt_exit_policies() -> list[ExitPolicySpec]:
    return [
        ExitPolicySpec(
            id="confident",
            summary="leaves when the most likely token is likely enough",
            factory=f"{__name__}:Confident",
            params=(THRESHOLD,),
            needs=frozenset({Word.LOGITS, Word.VARIABLE_DEPTH}),
        )
    ]


class Confident:
    """Reads the signal `logits`, float32 [R, V]: the head on the state after a loop."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """Nothing is remembered from loop to loop."""
        return ()

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """bool [R]: which rows leave after this loop."""
        best = signals["logits"].softmax(-1).amax(-1)
        return best >= params["exit_threshold"], {}
