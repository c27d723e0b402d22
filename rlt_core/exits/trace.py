"""Policy `trace`: replay recorded depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec

if TYPE_CHECKING:
    from torch import Tensor


class Trace:
    """`trace` int64 [R]: the depth recorded for the output that the row will give."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """None is kept."""
        return ()

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Leave at the recorded depth, or as soon after it as the core allows."""
        return depth >= params["trace"], {}
