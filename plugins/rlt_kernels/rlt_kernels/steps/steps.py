"""The steps themselves: rlt_core.contract.steps.DecodeSteps in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from rlt_core.contract.steps import Drawn, LeavingRows, RunningRows
from rlt_kernels.steps.rows import (
    advance_rows,
    apply_changes,
    enter_rows,
    leave_rows,
    settle_rows,
)
from rlt_kernels.steps.sampling import drawn_rows, peak_blocks, rank_blocks, score_blocks
from rlt_kernels.steps.states import fill_rows, keep_rows, mix_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.steps import FilledTrack, SlotArrays

_WIDTH = 2048  # columns of a state that one program moves
_CHANGES = 256  # page-table entries of one program
_VOCAB = 1024  # logits of one program


class TritonSteps:
    """DecodeSteps; holds nothing but what it asks the device once."""

    def apply(self, slots: SlotArrays, limits: Tensor, at: Tensor, page: Tensor) -> None:
        """See DecodeSteps."""
        sizes = (limits.shape[0], at.shape[0])
        apply_changes[(triton.cdiv(max(sizes), _CHANGES),)](
            slots.page_limit, slots.tables, limits, at, page, *sizes, BLOCK=_CHANGES
        )

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
            slots.read_depth, _or(slots.key_depth, rows), slots.loops, slots.write,
            position, token, depth, plane, live, enters, key_len, page_row, parked,
            num, sentinel, slots.write.shape[1], _width(slots), slots.max_depth,
            slots.tables.shape[1], first, parts,
            BLOCK=_block(num), ALL=_block(sentinel) if all_left else 0, HIDES=hides,
            num_warps=_warps(num),
        )  # fmt: skip
        return RunningRows(
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

    def mix(self, entering: Tensor, kept: Tensor, rows: RunningRows) -> Tensor:
        """See DecodeSteps."""
        entering = entering.contiguous()
        num, width = entering.shape
        out = torch.empty((num, width), dtype=entering.dtype, device=entering.device)
        mix_rows[(num, triton.cdiv(width, _WIDTH))](
            entering, kept, rows.slot, rows.enters, out, width, BLOCK=_WIDTH, num_warps=8
        )
        return out

    def keep(self, kept: Tensor, rows: RunningRows, state: Tensor, where: Tensor) -> None:
        """See DecodeSteps."""
        state = state.contiguous()
        num, width = state.shape
        keep_rows[(num, triton.cdiv(width, _WIDTH))](
            kept, rows.slot, state, where, width, BLOCK=_WIDTH, num_warps=8
        )

    def settle(
        self, slots: SlotArrays, rows: RunningRows, says: Tensor | None, tick: Tensor, *, full: bool
    ) -> tuple[Tensor, Tensor]:
        """See DecodeSteps."""
        num, sentinel = rows.slot.shape[0], slots.phase.shape[0] - 1
        decided = torch.empty_like(rows.live)
        counts = torch.empty(5, dtype=torch.int64, device=decided.device)
        settle_rows[(1,)](
            rows.slot, rows.position, rows.depth, rows.live, _or(says, rows.live), tick,
            rows.parked, slots.phase, slots.depth, slots.left_at, slots.read_depth,
            _or(slots.key_depth, rows.slot), slots.loops, slots.min_loops, slots.max_loops,
            slots.use_policy, decided, counts, num, sentinel, _width(slots),
            BLOCK=_block(num), SAYS=says is not None, HIDES=slots.key_depth is not None, FULL=full,
            num_warps=_warps(num),
        )  # fmt: skip
        return decided, counts

    def fill_planes(
        self, slots: SlotArrays, rows: RunningRows, decided: Tensor, track: FilledTrack
    ) -> None:
        """See DecodeSteps."""
        pool = track.pool
        units, page, size = pool.shape[1], pool.shape[3], pool.shape[4] * pool.shape[5]
        fill_rows[(rows.slot.shape[0], track.parts * units)](
            pool, slots.tables, rows.slot, rows.position, rows.depth, decided, slots.loops,
            slots.write, slots.fill, slots.write.shape[1], slots.tables.shape[1],
            slots.tables.shape[2], track.first, slots.fill.shape[3],
            pool.stride(0), pool.stride(1), pool.stride(2),
            UNITS=units, PARTS=track.parts, PLANES=track.num_planes, PAGE=page, SIZE=size,
            BLOCK=triton.next_power_of_2(size), num_warps=4,
        )  # fmt: skip

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
            BLOCK=_block(num), PLACES=_block(places), WAITS=min_leave > 1, num_warps=8,
        )  # fmt: skip
        return LeavingRows(slot=slot, position=position, depth=depth, live=live, count=count)

    def sample(self, slots: SlotArrays, leaving: LeavingRows, logits: Tensor) -> Drawn:
        """See DecodeSteps."""
        logits = logits.contiguous()
        num, vocab = logits.shape
        blocks = triton.cdiv(vocab, _VOCAB)
        room, lib = triton.next_power_of_2(blocks), logits.is_cuda
        peak = torch.empty((num, blocks), dtype=torch.float32, device=logits.device)
        total, key, ranks = (torch.empty_like(peak, dtype=torch.int64) for _ in range(3))
        drawn = Drawn(
            token=torch.empty(num, dtype=torch.int64, device=logits.device),
            logprob=torch.empty(num, dtype=torch.float32, device=logits.device),
            rank=torch.empty(num, dtype=torch.int64, device=logits.device),
            bad=torch.empty(num, dtype=torch.bool, device=logits.device),
        )
        grid, count = (num, blocks), leaving.count
        peak_blocks[grid](logits, count, peak, vocab, blocks, BLOCK=_VOCAB)
        score_blocks[grid](
            logits, count, leaving.slot, leaving.position, slots.seed, slots.temperature,
            peak, total, key, vocab, blocks, BLOCK=_VOCAB, BLOCKS=room, LIB=lib,
        )  # fmt: skip
        rank_blocks[grid](logits, count, peak, key, ranks, vocab, blocks, BLOCK=_VOCAB, BLOCKS=room)
        drawn_rows[(num,)](
            logits, count, peak, total, key, ranks, drawn.token, drawn.logprob, drawn.rank,
            drawn.bad, vocab, blocks, BLOCKS=room, LIB=lib,
        )  # fmt: skip
        return drawn

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
            BLOCK=_block(num), STOPS=slots.stop_ids.shape[1], num_warps=_warps(num),
        )  # fmt: skip
        return out


def _block(num: int) -> int:
    return max(16, int(triton.next_power_of_2(num)))


def _warps(num: int) -> int:
    return min(8, max(1, _block(num) // 32))


def _width(slots: SlotArrays) -> int:
    return 0 if slots.key_depth is None else slots.key_depth.shape[1]


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """An argument that the kernel will not read still has to be a tensor."""
    return other if tensor is None else tensor
