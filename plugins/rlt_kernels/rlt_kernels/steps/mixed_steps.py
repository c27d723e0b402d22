"""The steps of ticks with plain prompts' rows: rlt_core.contract.mixed_steps in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from rlt_core.contract.steps import LeavingRows, RunningRows
from rlt_kernels.steps.leaving import leave_rows
from rlt_kernels.steps.prompts import end_prompts, enter_prompts, settle_prompts
from rlt_kernels.steps.row_steps import block_of, either, warps_of, width_of
from rlt_kernels.steps.rows import enter_rows, settle_rows
from rlt_kernels.steps.steps import TritonSteps

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.mixed_steps import PromptPart
    from rlt_core.contract.steps import SlotArrays

_ROWS = 256  # prompt rows of one program


class TritonMixedSteps(TritonSteps):
    """MixedSteps; holds nothing."""

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
        """See MixedSteps."""
        num, sentinel = rows.shape[0], slots.phase.shape[0] - 1
        total, hides = num + prompt.slot.shape[0], slots.key_depth is not None
        ints = torch.empty((9, total + 1), dtype=torch.int64, device=rows.device)
        home, slot, position, token, depth, plane, rule, page_row, key_len = ints.unbind()
        live, enters = torch.empty((2, total), dtype=torch.bool, device=rows.device).unbind()
        parked = torch.empty(1, dtype=torch.int64, device=rows.device)
        depths, tables = slots.write.shape[1], slots.tables.shape[1]
        sizes = (depths, width_of(slots), slots.max_depth, tables, first, parts)
        enter_rows[(1,)](
            rows, slots.phase, slots.token, slots.position, slots.depth, slots.page_limit,
            slots.read_depth, either(slots.key_depth, rows), slots.loops, slots.write,
            position, token, depth, plane, live, enters, key_len, page_row, parked,
            num, sentinel, *sizes,
            BLOCK=block_of(num), ALL=block_of(sentinel) if all_left else 0, HIDES=hides,
            num_warps=warps_of(num),
        )  # fmt: skip
        enter_prompts[(triton.cdiv(total + 1, _ROWS),)](
            rows, prompt.place, prompt.slot, prompt.token, prompt.position, prompt.depth,
            prompt.rule, slots.read_depth, either(slots.key_depth, rows), slots.loops, slots.write,
            home, slot, position, token, depth, plane, rule, page_row, key_len, live, enters,
            num, total - num, sentinel, *sizes, BLOCK=_ROWS, HIDES=hides, FULL=full,
        )  # fmt: skip
        return RunningRows(
            home=home[:total],
            slot=slot[:total],
            position=position[:total],
            token=token[:total],
            depth=depth[:total],
            plane=plane[:total],
            live=live,
            enters=enters,
            key_len=key_len,
            page_row=page_row[:total],
            parked=parked,
            rule=rule[:total],
        )

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
        """See MixedSteps."""
        total, sentinel = rows.slot.shape[0], slots.phase.shape[0] - 1
        num, hides = total - prompt.slot.shape[0], slots.key_depth is not None
        decided = torch.empty_like(rows.live)
        counts = torch.empty(5, dtype=torch.int64, device=decided.device)
        settle_rows[(1,)](
            rows.slot, rows.position, rows.depth, rows.live, either(says, rows.live), tick,
            rows.parked, slots.phase, slots.depth, slots.left_at, slots.read_depth,
            either(slots.key_depth, rows.slot), slots.loops, slots.min_loops, slots.max_loops,
            slots.use_policy, decided, counts, num, sentinel, width_of(slots),
            BLOCK=block_of(num), SAYS=says is not None, HIDES=hides, FULL=full,
            num_warps=warps_of(num),
        )  # fmt: skip
        asks = says is not None and says.shape[0] == total
        settle_prompts[(triton.cdiv(total - num, _ROWS),)](
            rows.home, rows.slot, rows.position, rows.depth, rows.live, prompt.exit_at,
            either(says, rows.live), slots.read_depth, either(slots.key_depth, rows.slot),
            slots.loops, slots.min_loops, slots.max_loops, slots.use_policy, decided, counts,
            num, total - num, width_of(slots), BLOCK=_ROWS, SAYS=asks, HIDES=hides, FULL=full,
        )  # fmt: skip
        return decided, counts

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
        """See MixedSteps."""
        num, sentinel = rows.shape[0], slots.phase.shape[0] - 1
        total = places + ends.shape[0]
        ints = torch.empty((4, total), dtype=torch.int64, device=rows.device)
        slot, home, position, depth = ints.unbind()
        live = torch.empty(total, dtype=torch.bool, device=rows.device)
        count = torch.empty(1, dtype=torch.int32, device=rows.device)
        if places:
            leave_rows[(1,)](
                rows, tick, slots.phase, slots.position, slots.page_limit, slots.left_at,
                slots.read_depth, slots.loops, slot, position, depth, live, count,
                num, sentinel, places, min_leave,
                BLOCK=block_of(num), PLACES=block_of(places), WAITS=min_leave > 1, BUSY=True,
                num_warps=8,
            )  # fmt: skip
        end_prompts[(1,)](
            prompt.place, prompt.slot, prompt.position, ends, slots.read_depth,
            slot, home, position, depth, live, count, places, total - places, sentinel,
            BLOCK=block_of(total), num_warps=warps_of(total),
        )  # fmt: skip
        return LeavingRows(
            home=home, slot=slot, position=position, depth=depth, live=live, count=count
        )
