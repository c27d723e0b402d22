"""The attention backend `triton`: exact, on paged KV, for decode rows and prompt cells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import triton

from rlt_core.contract.protocols import KVRows, PagedRows, Turn
from rlt_kernels.attention.blocks import (
    Blocks,
    cell_kernel,
    pays,
    ring_kernel,
    takes_blocks,
)
from rlt_kernels.attention.cell_merge import LANES, LEAST_RUNS, merge_cells_kernel
from rlt_kernels.attention.chunk import BLOCK, CHUNK, PIECE
from rlt_kernels.attention.decode import decode_kernel
from rlt_kernels.attention.paged import (
    OPTIONS,
    check_rows,
    paged_rows,
    strides,
    turn_arguments,
    write_rows,
)
from rlt_kernels.attention.prompt import tile_kernel
from rlt_kernels.launch import can_overlap

if TYPE_CHECKING:
    from torch import Tensor

# Programs that fill the chip; fewer rows are spread over so many.
_PROGRAMS = 256
# Rows in cells, padding included, whose tiles are shared; tiles that hold them, with padding; and
# bytes that their chunks' partial results may take.
_FEW_ROWS, _MOST_TILES, _MOST_BYTES = 65, 256, 1 << 27


class TritonAttention:
    """protocols.PagedAttention; any page size that divides 128, any head size up to 256."""

    tile_rows = 64

    def __init__(self, programs: int = _PROGRAMS, warps: int = 4) -> None:
        """programs and warps of the decode kernel; more programs than chunks are never started."""
        self._programs, self._warps = programs, warps
        # All that were ever made: a captured graph goes on using the one it was captured with.
        self._arrived: list[Tensor] = []
        self._blocks = Blocks()
        self._side: torch.cuda.Stream | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
        """protocols.Attention, for rows whose tiles carry their own pages."""
        paged = paged_rows(rows, q.shape[0])
        return self.paged(q.contiguous(), k.contiguous(), v.contiguous(), paged, scale, None)

    def paged(
        self, q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, scale: float, turn: Turn | None
    ) -> Tensor:
        """q [R, H, d], k and v [R, G, d], not yet rotated -> [R, H, d]."""
        check_rows(q, k, v, rows)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not rows.num_single:
            self._cells(q, k, v, out, rows, scale, turn)
        elif rows.num_single == q.shape[0]:
            self._singles(q, k, v, out, rows, scale, turn)
        else:
            # Cells are few programs that take long, rows alone many that wait for memory.
            with self._beside(q.device):
                self._cells(q, k, v, out, rows, scale, turn)
            self._singles(q, k, v, out, rows, scale, turn)
            if self._side is not None:
                torch.cuda.current_stream().wait_stream(self._side)
        return out

    @contextmanager
    def _beside(self, device: torch.device) -> Iterator[None]:
        """Launches go to a stream beside the current one, from what has been launched on."""
        if device.type != "cuda":
            yield
            return
        if self._side is None:
            self._side = torch.cuda.Stream(device)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _singles(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        rows: PagedRows,
        scale: float,
        turn: Turn | None,
    ) -> None:
        num, groups, size = rows.num_single, k.shape[1], q.shape[2]
        rep = q.shape[1] // groups
        chunks = -(-rows.pages.shape[1] * rows.pool.shape[3] // CHUNK.value)
        vectors = num * groups
        blocks = self._warps == 4 and pays(vectors, chunks) and takes_blocks(q, rows)
        # ring.py's programs are small: where rows are not few, twice as many of them are faster.
        programs = self._programs * (2 if blocks and vectors >= 64 else 1)
        splits = num_splits(programs // vectors, chunks)
        if splits > 1:
            parts = torch.empty(
                (num, groups, chunks, rep, size + 2), dtype=torch.float32, device=q.device
            )
            arrived = self._counters(num * groups, q.device)
        else:
            parts = out
            arrived = rows.key_len
        room = num * groups * chunks * rep if splits > 1 else 0
        flat = parts.view(-1)
        highest, total, mixed = flat, flat[room:], flat[2 * room :]
        pool = rows.pool[:, rows.unit]
        cos, sin, rope, interleaved = turn_arguments(turn, q)
        pdl = can_overlap(q.device)
        # ring.py reads its rows' tables before the kernel in front has ended, which for the first
        # call with these rows may be the one that writes which tables are theirs.
        early = pdl and (not blocks or "called" in rows.kept)
        rows.kept["called"] = True
        extra = {**OPTIONS, "num_warps": self._warps} | ({"launch_pdl": True} if early else {})
        padded = max(16, triton.next_power_of_2(size))
        turning = {"ROPE": rope, "INTERLEAVED": interleaved, "PDL": pdl}
        sizes = {
            "REP": rep, "LANES": max(16, triton.next_power_of_2(rep)), "D": size, "DP": padded,
            "PAGE": rows.pool.shape[3], "SPLITS": splits, "RP": triton.next_power_of_2(rep),
        }  # fmt: skip
        steps = (q.stride(0), k.stride(0), v.stride(0))
        if blocks:
            width = pool.stride(2)
            ring_kernel()[(num, groups, splits)](
                q, k, v, out, self._blocks.of(pool, PIECE.value, padded), pool,
                rows.pages, rows.page_row, rows.key_len, cos, sin, highest, total, mixed, arrived,
                *strides(pool), rows.pages.shape[1], *steps, cos.stride(0),
                scale / math.log(2), chunks,
                PAGE_ROWS=pool.stride(0) // width, SIDE_ROWS=pool.stride(1) // width,
                **sizes, **turning, **extra,
            )  # fmt: skip
            return
        hidden, hidden_row = _hidden(rows)
        decode_kernel[(num, groups, splits)](
            q, k, v, out, pool, rows.pages, rows.page_row, rows.key_len, cos, sin,
            hidden, hidden_row, highest, total, mixed, arrived,
            *strides(pool), rows.pages.shape[1], *steps, hidden.shape[-1], cos.stride(0),
            scale / math.log(2), chunks,
            STORE=rows.store, HIDES=rows.hidden is not None, DOT="ieee", WHOLE=_whole(pool),
            **sizes, **turning, **extra,
        )  # fmt: skip

    def _cells(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        rows: PagedRows,
        scale: float,
        turn: Turn | None,
    ) -> None:
        first, heads, groups, size = rows.num_single, q.shape[1], k.shape[1], q.shape[2]
        pool = rows.pool[:, rows.unit]
        padded = max(16, triton.next_power_of_2(size))
        turned = write_rows(q, k, v, rows, turn, first)
        if takes_blocks(q, rows):
            self._tiles(turned, out, pool, rows, heads // groups, scale)
            return
        hidden, hidden_row = _hidden(rows)
        # Float32 products have no tensor cores and are written out for each thread: with four warps
        # that is 2 MB of code for a head of 128, and 2950 us where 16 warps take 207.
        warps = 4 if q.dtype != torch.float32 else 16 if padded > 64 else 8
        tile_kernel[(rows.tile_first.shape[0], heads)](
            turned, out, pool, rows.pages, rows.page_row, rows.key_len,
            rows.tile_first, rows.tile_len, hidden, hidden_row,
            first, *strides(pool), rows.pages.shape[1],
            hidden.shape[-1], scale / math.log(2),
            H=heads, REP=heads // groups, ROWS=rows.tile_rows, D=size, DP=padded,
            PAGE=rows.pool.shape[3], HIDES=rows.hidden is not None,
            DOT="ieee", STAGES=1, WHOLE=_whole(pool), **OPTIONS | {"num_warps": warps},
        )  # fmt: skip

    def _tiles(
        self, q: Tensor, out: Tensor, pool: Tensor, rows: PagedRows, rep: int, scale: float
    ) -> None:
        """Rows in cells by cells.py; q [rows in cells, H, d], turned."""
        first, (num, heads, size) = rows.num_single, q.shape
        padded, tiles = max(16, triton.next_power_of_2(size)), rows.tile_first.shape[0]
        chunks = -(-rows.pages.shape[1] * rows.pool.shape[3] // CHUNK.value)
        room = min(self._programs // heads, _MOST_TILES)
        room_bytes = num * heads * chunks * (size + 2) * 4
        if num > _FEW_ROWS or tiles > _MOST_TILES or room_bytes > _MOST_BYTES or room < LEAST_RUNS:
            room = 0
        # In fours, so that all three parts begin at multiples of 16 bytes whatever the number.
        count = -(-num * heads * chunks // 4) * 4 if room else 0
        flat = torch.empty(count * (size + 2), dtype=torch.float32, device=q.device)
        parts = (flat, flat[count:], flat[2 * count :])
        sharing = {"ROOM": room, "TILES": _MOST_TILES}
        sizes = {"H": heads, "ROWS": rows.tile_rows, "D": size, "DP": padded, **sharing}
        width, blocks = pool.stride(2), self._blocks.of(pool, BLOCK.value, padded)
        cell_kernel()[(heads, max(tiles, room))](
            q, out, blocks, rows.pages, rows.page_row, rows.key_len,
            rows.tile_first, rows.tile_len, *parts, first, tiles, chunks, rows.pages.shape[1],
            scale / math.log(2), REP=rep, PAGE=rows.pool.shape[3],
            PAGE_ROWS=pool.stride(0) // width, SIDE_ROWS=pool.stride(1) // width,
            **sizes, **OPTIONS | {"num_warps": rows.tile_rows // 16},
        )  # fmt: skip
        if room:
            pdl, shared = can_overlap(q.device), min(tiles, room // LEAST_RUNS)
            merge_cells_kernel[(heads, shared, rows.tile_rows // LANES)](
                out, *parts, rows.key_len, rows.tile_first, rows.tile_len, first, tiles, chunks,
                LANES=LANES, PDL=pdl, **sizes, **OPTIONS | ({"launch_pdl": True} if pdl else {}),
            )  # fmt: skip

    def _counters(self, count: int, device: torch.device) -> Tensor:
        """int32 zeros; every launch leaves them at zero."""
        if not self._arrived or self._arrived[-1].numel() < count:
            made = torch.zeros(max(count, 4096), dtype=torch.int32, device=device)
            self._arrived.append(made)
        return self._arrived[-1]


def num_splits(room: int, chunks: int) -> int:
    """Over how many programs a row's chunks are spread where there is room for so many of each
    row and KV head: a power of two, whatever the lengths."""
    wanted = max(1, min(chunks, room))
    return 1 << (wanted.bit_length() - 1)


def _hidden(rows: PagedRows) -> tuple[Tensor, Tensor]:
    """The hidden keys and each row's row of them; anything where nothing is hidden."""
    if rows.hidden is None or rows.hidden_row is None:
        return rows.key_len, rows.key_len
    return rows.hidden, rows.hidden_row


def _whole(pool: Tensor) -> int:
    """How many positions a page's stride is; 0 where that is no whole number, or too many."""
    count, rest = divmod(pool.stride(0), pool.stride(2))
    return 0 if rest or count * pool.shape[0] >= 1 << 31 else count
