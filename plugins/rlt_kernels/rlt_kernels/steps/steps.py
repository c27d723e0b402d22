"""The steps of ticks whose slots have one row: rlt_core.contract.steps.DecodeSteps in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlt_core.contract.steps import LeavingRows, RunningRows
from rlt_kernels.steps.leaving import advance_rows, leave_rows
from rlt_kernels.steps.row_steps import TritonRowSteps, block_of, either, warps_of, width_of
from rlt_kernels.steps.rows import enter_rows, settle_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.steps import Drawn, SlotArrays


class TritonSteps(TritonRowSteps):
    """DecodeSteps; holds nothing."""

    def enter(
        self, slots: SlotArrays, rows: Tensor, *, all_left: bool, first: int, parts: int
    ) -> RunningRows:
        """See DecodeSteps."""
        num, sentinel = rows.shape[0], slots.phase.shape[0] - 1
        ints = torch.empty((6, num + 1), dtype=torch.int64, device=rows.device)
        flags = torch.empty((2, num), dtype=torch.bool, device=rows.device)
        position, token, depth, plane, page_row, key_len = ints.unbind()
        parked = torch.empty(1, dtype=torch.int64, device=rows.device)
        live, enters = flags.unbind()
        hides = slots.key_depth is not None
        enter_rows[(1,)](
            rows, slots.phase, slots.token, slots.position, slots.depth, slots.page_limit,
            slots.read_depth, either(slots.key_depth, rows), slots.loops, slots.write,
            position, token, depth, plane, live, enters, key_len, page_row, parked,
            num, sentinel, slots.write.shape[1], width_of(slots), slots.max_depth,
            slots.tables.shape[1], first, parts,
            BLOCK=block_of(num), ALL=block_of(sentinel) if all_left else 0, HIDES=hides,
            num_warps=warps_of(num),
        )  # fmt: skip
        return RunningRows(
            home=rows,
            slot=rows,
            position=position[:num],
            token=token[:num],
            depth=depth[:num],
            plane=plane[:num],
            live=live,
            enters=enters,
            key_len=key_len,
            page_row=page_row[:num],
            parked=parked,
        )

    def settle(
        self, slots: SlotArrays, rows: RunningRows, says: Tensor | None, tick: Tensor, *, full: bool
    ) -> tuple[Tensor, Tensor]:
        """See DecodeSteps."""
        num, sentinel = rows.slot.shape[0], slots.phase.shape[0] - 1
        decided = torch.empty_like(rows.live)
        counts = torch.empty(5, dtype=torch.int64, device=decided.device)
        settle_rows[(1,)](
            rows.slot, rows.position, rows.depth, rows.live, either(says, rows.live), tick,
            rows.parked, slots.phase, slots.depth, slots.left_at, slots.read_depth,
            either(slots.key_depth, rows.slot), slots.loops, slots.min_loops, slots.max_loops,
            slots.use_policy, decided, counts, num, sentinel, width_of(slots),
            BLOCK=block_of(num), SAYS=says is not None, HIDES=slots.key_depth is not None,
            FULL=full, num_warps=warps_of(num),
        )  # fmt: skip
        return decided, counts

    def leave(
        self, slots: SlotArrays, rows: Tensor, tick: Tensor, *, places: int, min_leave: int
    ) -> LeavingRows:
        """See DecodeSteps."""
        num, sentinel = rows.shape[0], slots.phase.shape[0] - 1
        ints = torch.empty((3, places), dtype=torch.int64, device=rows.device)
        slot, position, depth = ints.unbind()
        live = torch.empty(places, dtype=torch.bool, device=rows.device)
        count = torch.empty(1, dtype=torch.int32, device=rows.device)
        leave_rows[(1,)](
            rows, tick, slots.phase, slots.position, slots.page_limit, slots.left_at,
            slots.read_depth, slots.loops, slot, position, depth, live, count,
            num, sentinel, places, min_leave,
            BLOCK=block_of(num), PLACES=block_of(places), WAITS=min_leave > 1, BUSY=False,
            num_warps=8,
        )  # fmt: skip
        return LeavingRows(
            home=slot, slot=slot, position=position, depth=depth, live=live, count=count
        )

    def advance(
        self, slots: SlotArrays, leaving: LeavingRows, drawn: Drawn, counts: Tensor
    ) -> Tensor:
        """See DecodeSteps."""
        num, sentinel = leaving.slot.shape[0], slots.phase.shape[0] - 1
        out = torch.empty(6 * num + 5, dtype=torch.int64, device=counts.device)
        advance_rows[(1,)](
            leaving.slot, leaving.position, leaving.depth, drawn.token, drawn.logprob, drawn.rank,
            drawn.bad, counts, slots.phase, slots.token, slots.position, slots.num_out,
            slots.max_tokens, slots.max_position, slots.stop_ids, out, num, sentinel,
            BLOCK=block_of(num), STOPS=slots.stop_ids.shape[1], num_warps=warps_of(num),
        )  # fmt: skip
        return out
