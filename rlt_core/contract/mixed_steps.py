"""The device's bookkeeping for ticks with rows of plain prompts, as one set of fused steps.

steps.DecodeSteps, and what prompt rows behind the decode rows need besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rlt_core.contract.steps import DecodeSteps, LeavingRows, RunningRows, SlotArrays

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """The prompt rows of a tick: int64 [N] each.

    place: the row's home is S + 1 + place. depth counts the loop of this tick, from 1. exit_at: the
    depth that the row leaves at; 0: by the policy. rule as in RunningRows. Padding has the sentinel
    slot, place -1 and depth 1: it neither enters nor runs.
    """

    place: Tensor
    slot: Tensor
    token: Tensor
    position: Tensor
    depth: Tensor
    exit_at: Tensor
    rule: Tensor


@runtime_checkable
class MixedSteps(DecodeSteps, Protocol):
    """The steps of ticks of R decode rows, of which there may be none, and N prompt rows of plain
    prompts: whatever ends gives a token, and no state is handed on. A set of steps may do without
    these. In a tick's order: enter_mixed, mix, settle_mixed, keep, fill_planes, leave_mixed,
    sample, advance."""

    def enter_mixed(
        self,
        slots: SlotArrays,
        rows: Tensor,
        prompt: PromptPart,
        *,
        all_left: bool,
        full: bool,
        first: int,
        parts: int,
    ) -> RunningRows:
        """`enter` for rows int64 [R], and the prompt rows behind them: R + N rows, each with its
        rule. Prompt rows enter at depth 1; unless `full`, they stand still once they were read."""
        ...

    def settle_mixed(
        self,
        slots: SlotArrays,
        rows: RunningRows,
        prompt: PromptPart,
        says: Tensor | None,
        tick: Tensor,
        *,
        full: bool,
    ) -> tuple[Tensor, Tensor]:
        """`settle` for R + N rows; says bool [R + N], or bool [R] where no prompt row asks. The
        last count is that of decode rows alone."""
        ...

    def leave_mixed(
        self,
        slots: SlotArrays,
        rows: Tensor,
        prompt: PromptPart,
        ends: Tensor,
        tick: Tensor,
        *,
        places: int,
        min_leave: int,
    ) -> LeavingRows:
        """`leave` for `places` rows, where the prompt rows run on, and behind them those of the
        prompt rows `ends` int64 [F], whose prompts end; rows of padding are empty places."""
        ...
