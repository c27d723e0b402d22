"""Policy `fixed`: every row runs all its loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlt_core.contract.protocols import StateSpec

if TYPE_CHECKING:
    from torch import Tensor


class Fixed:
    """Never leaves by itself; the core ends a row at its max_loops."""

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
        """False for every row."""
        return depth < 0, {}
