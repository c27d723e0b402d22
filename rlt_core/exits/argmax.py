"""Policy `argmax`: leave when the likeliest token has stayed the same for some loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from rlt_core.contract.protocols import StateSpec

if TYPE_CHECKING:
    from torch import Tensor


class Argmax:
    """Reads `logits` float32 [R, V] and `exit_threshold`, whole numbers as float32 [R]."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """`token`: the likeliest after the loop before (-1: none); `count`: loops in a row that
        did not change it."""
        return (
            StateSpec(name="token", dtype="int64", initial=-1),
            StateSpec(name="count", dtype="int64"),
        )

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(count at least the threshold, new `token` and `count`); ties go to the lowest id."""
        token = signals["logits"].argmax(-1)
        count = torch.where(token == state["token"], state["count"] + 1, 0)
        return count >= params["exit_threshold"], {"token": token, "count": count}
