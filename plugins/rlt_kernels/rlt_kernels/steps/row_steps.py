"""What ticks of every kind do with their rows: rlt_core.contract.steps.RowSteps in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from rlt_core.contract.steps import Drawn
from rlt_kernels.steps.rows import apply_changes
from rlt_kernels.steps.sampling import drawn_rows, peak_blocks, rank_blocks, score_blocks
from rlt_kernels.steps.states import fill_rows, keep_rows, mix_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.steps import FilledTrack, LeavingRows, RunningRows, SlotArrays

STATE_WIDTH = 2048  # columns of a state that one program moves
_CHANGES = 256  # page-table entries of one program
_VOCAB = 1024  # logits of one program
# Rows whose exits one program fills: of many rows, prompts', few exit in a tick.
_FEW, _SOME = 256, 16


class TritonRowSteps:
    """RowSteps; holds nothing."""

    def apply(self, slots: SlotArrays, limits: Tensor, at: Tensor, page: Tensor) -> None:
        """See RowSteps."""
        sizes = (limits.shape[0], at.shape[0])
        apply_changes[(triton.cdiv(max(sizes), _CHANGES),)](
            slots.page_limit, slots.tables, limits, at, page, *sizes, BLOCK=_CHANGES
        )

    def mix(self, entering: Tensor, kept: Tensor, rows: RunningRows) -> Tensor:
        """See RowSteps."""
        entering = entering.contiguous()
        num, width = entering.shape
        out = torch.empty((num, width), dtype=entering.dtype, device=entering.device)
        mix_rows[(num, triton.cdiv(width, STATE_WIDTH))](
            entering, kept, rows.home, rows.enters, out, width, BLOCK=STATE_WIDTH, num_warps=8
        )
        return out

    def keep(self, kept: Tensor, rows: RunningRows, state: Tensor, where: Tensor) -> None:
        """See RowSteps."""
        state = state.contiguous()
        num, width = state.shape
        keep_rows[(num, triton.cdiv(width, STATE_WIDTH))](
            kept, rows.home, state, where, width, BLOCK=STATE_WIDTH, num_warps=8
        )

    def fill_planes(
        self, slots: SlotArrays, rows: RunningRows, decided: Tensor, track: FilledTrack
    ) -> None:
        """See RowSteps."""
        pool = track.pool
        units, page, size = pool.shape[1], pool.shape[3], pool.shape[4] * pool.shape[5]
        num, planes = rows.slot.shape[0], triton.next_power_of_2(track.num_planes)
        some = 1 if num <= _FEW else _SOME
        fill_rows[(triton.cdiv(num, some), track.parts * units)](
            pool, slots.tables, rows.slot, rows.position, rows.depth, either(rows.rule, rows.slot),
            decided, slots.loops, slots.write, slots.fill, num, slots.write.shape[1],
            slots.tables.shape[1], slots.tables.shape[2], track.first, slots.fill.shape[3],
            pool.stride(0), pool.stride(1), pool.stride(2),
            UNITS=units, PARTS=track.parts, PLANES=track.num_planes, PAGE=page, SIZE=size,
            BLOCK=triton.next_power_of_2(size), ALL=max(2, planes), ROWS=some,
            RULES=rows.rule is not None, num_warps=4,
        )  # fmt: skip

    def sample(self, slots: SlotArrays, leaving: LeavingRows, logits: Tensor) -> Drawn:
        """See RowSteps."""
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
        grid, live = (num, blocks), leaving.live
        peak_blocks[grid](logits, live, peak, vocab, blocks, BLOCK=_VOCAB)
        score_blocks[grid](
            logits, live, leaving.slot, leaving.position, slots.seed, slots.temperature,
            peak, total, key, vocab, blocks, BLOCK=_VOCAB, BLOCKS=room, LIB=lib,
        )  # fmt: skip
        rank_blocks[grid](logits, live, peak, key, ranks, vocab, blocks, BLOCK=_VOCAB, BLOCKS=room)
        drawn_rows[(num,)](
            logits, live, peak, total, key, ranks, drawn.token, drawn.logprob, drawn.rank,
            drawn.bad, vocab, blocks, BLOCKS=room, LIB=lib,
        )  # fmt: skip
        return drawn


def block_of(num: int) -> int:
    return max(16, int(triton.next_power_of_2(num)))


def warps_of(num: int) -> int:
    return min(8, max(1, block_of(num) // 32))


def width_of(slots: SlotArrays) -> int:
    return 0 if slots.key_depth is None else slots.key_depth.shape[1]


def either(tensor: Tensor | None, other: Tensor) -> Tensor:
    """An argument that the kernel will not read still has to be a tensor."""
    return other if tensor is None else tensor
