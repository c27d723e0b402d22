"""The steps of ticks whose slots have lanes: rlt_core.contract.lane_steps.LaneSteps in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from rlt_core.contract.steps import LeavingRows, RunningRows
from rlt_kernels.steps.flight import advance_lanes, choose_rows, note_rows
from rlt_kernels.steps.lanes import enter_lanes, settle_lanes
from rlt_kernels.steps.row_steps import (
    STATE_WIDTH,
    TritonRowSteps,
    block_of,
    either,
    warps_of,
    width_of,
)
from rlt_kernels.steps.states import read_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.lane_steps import LaneArrays
    from rlt_core.contract.steps import Drawn, SlotArrays

# Rows that a program has before it at once.
_ROWS = 1024


class TritonLaneSteps(TritonRowSteps):
    """LaneSteps; holds nothing."""

    def enter(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        *,
        fan: int,
        first: int,
        parts: int,
        full: bool,
    ) -> RunningRows:
        """See LaneSteps."""
        num, sentinel = listed.shape[0], slots.phase.shape[0] - 1
        rows = num * fan
        ints = torch.empty((8, rows + 1), dtype=torch.int64, device=listed.device)
        home, slot, position, token, depth, plane, page_row, key_len = ints.unbind()
        live, enters = torch.empty((2, rows), dtype=torch.bool, device=listed.device).unbind()
        parked = torch.empty(1, dtype=torch.int64, device=listed.device)
        enter_lanes[(1,)](
            listed, slots.phase, slots.token, slots.position, slots.page_limit, slots.num_out,
            slots.max_tokens, slots.max_position, slots.loops, slots.read_depth,
            either(slots.key_depth, listed), slots.write,
            lanes.token, lanes.position, lanes.depth, lanes.guess, lanes.ahead,
            home, slot, position, token, depth, plane, live, enters, key_len, page_row, parked,
            num, sentinel, lanes.base, slots.write.shape[1], width_of(slots), slots.max_depth,
            slots.tables.shape[1], first, parts,
            NUM=lanes.num, HIDES=slots.key_depth is not None, FULL=full, **_tile(num, fan),
        )  # fmt: skip
        return RunningRows(
            home=home[:rows],
            slot=slot[:rows],
            position=position[:rows],
            token=token[:rows],
            depth=depth[:rows],
            plane=plane[:rows],
            live=live,
            enters=enters,
            key_len=key_len,
            page_row=page_row[:rows],
            parked=parked,
        )

    def settle(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        rows: RunningRows,
        says: Tensor | None,
        tick: Tensor,
        *,
        fan: int,
        full: bool,
    ) -> tuple[Tensor, Tensor]:
        """See LaneSteps."""
        num, sentinel = listed.shape[0], slots.phase.shape[0] - 1
        decided = torch.empty_like(rows.live)
        counts = torch.empty(5, dtype=torch.int64, device=decided.device)
        settle_lanes[(1,)](
            listed, rows.position, rows.depth, rows.live, either(says, rows.live), tick,
            rows.parked, slots.phase, slots.position, slots.left_at, slots.read_depth,
            either(slots.key_depth, listed), slots.loops, slots.min_loops, slots.max_loops,
            slots.use_policy, lanes.depth, decided, counts,
            num, sentinel, lanes.base, width_of(slots),
            NUM=lanes.num, SAYS=says is not None, HIDES=slots.key_depth is not None, FULL=full,
            **_tile(num, fan),
        )  # fmt: skip
        return decided, counts

    def choose(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        tick: Tensor,
        least: Tensor,
        *,
        places: int,
        min_leave: int,
        guesses: bool,
    ) -> LeavingRows:
        """See LaneSteps."""
        num, sentinel = listed.shape[0], slots.phase.shape[0] - 1
        rows = places + (num if guesses else 0)
        ints = torch.empty((4, rows), dtype=torch.int64, device=listed.device)
        slot, home, position, depth = ints.unbind()
        live = torch.empty(rows, dtype=torch.bool, device=listed.device)
        count = torch.empty(1, dtype=torch.int32, device=listed.device)
        choose_rows[(1,)](
            listed, tick, least, slots.phase, slots.position, slots.page_limit, slots.left_at,
            slots.num_out, slots.max_tokens, slots.max_position, slots.loops, slots.read_depth,
            lanes.depth, lanes.guess, lanes.ahead, lanes.trust, either(lanes.unguessed, live),
            slot, home, position, depth, live, count,
            num, sentinel, places, lanes.base, min_leave, lanes.draft,
            NUM=lanes.num, BLOCK=block_of(num), PLACES=block_of(places) if places else 0,
            WAITS=min_leave > 1, GUESSES=guesses, SPARES=lanes.unguessed is not None,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        return LeavingRows(
            home=home, slot=slot, position=position, depth=depth, live=live, count=count
        )

    def read(
        self, state: Tensor, read_state: Tensor, slots: SlotArrays, rows: LeavingRows
    ) -> Tensor:
        """See LaneSteps."""
        num, width = rows.home.shape[0], state.shape[1]
        out = torch.empty((num, width), dtype=state.dtype, device=state.device)
        read_rows[(num, triton.cdiv(width, STATE_WIDTH))](
            state, read_state, slots.read_depth, rows.home, out, width,
            BLOCK=STATE_WIDTH, num_warps=8,
        )  # fmt: skip
        return out

    def advance(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        leaving: LeavingRows,
        drawn: Drawn,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See LaneSteps."""
        num, sentinel = leaving.slot.shape[0], slots.phase.shape[0] - 1
        out = torch.empty(6 * num + 5, dtype=torch.int64, device=counts.device)
        drafts = torch.empty((2, num), dtype=torch.int64, device=counts.device)
        advance_lanes[(1,)](
            leaving.slot, leaving.position, leaving.depth, drawn.token, drawn.logprob, drawn.rank,
            drawn.bad, counts, slots.phase, slots.token, slots.position, slots.num_out,
            slots.max_tokens, slots.max_position, slots.stop_ids, slots.loops,
            lanes.token, lanes.position, lanes.depth, lanes.ahead, lanes.trust, out, drafts,
            num, sentinel, lanes.base, NUM=lanes.num, LANES=triton.next_power_of_2(lanes.num),
            BLOCK=block_of(num), STOPS=slots.stop_ids.shape[1], num_warps=warps_of(num),
            enable_fp_fusion=False,  # trust is rounded as torch does
        )  # fmt: skip
        return out, drafts

    def note(
        self, slots: SlotArrays, lanes: LaneArrays, rows: LeavingRows, token: Tensor, bad: Tensor
    ) -> None:
        """See LaneSteps."""
        num = rows.slot.shape[0]
        note_rows[(1,)](
            rows.slot, rows.home, token.contiguous(), bad.contiguous(), slots.phase,
            slots.stop_ids, lanes.guess, num, slots.phase.shape[0] - 1,
            BLOCK=block_of(num), STOPS=slots.stop_ids.shape[1], num_warps=warps_of(num),
        )  # fmt: skip


def _tile(num: int, fan: int) -> dict[str, int]:
    """Constants of a program over `num` slots with `fan` lanes each."""
    lanes = triton.next_power_of_2(fan)
    slots = max(1, min(block_of(num), _ROWS // lanes))
    if lanes == 1:
        slots = max(slots, 32)  # Triton 3.6 cannot lay out 16 rows of one lane in one warp
    return {"FAN": fan, "LANES": lanes, "SLOTS": slots, "num_warps": warps_of(slots * lanes)}
