"""Tiles of rows whose chunks several programs shared: their partial results put together."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from rlt_kernels.attention.chunk import CHUNK
from rlt_kernels.attention.parts import merge_parts

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

# Rows of a program.
LANES = 4
# Where fewer could share a tile, or where it has fewer chunks, one is sooner done (docs/log.md).
LEAST_RUNS = 8
_RUNS, _FEWEST = tl.constexpr(LEAST_RUNS), tl.constexpr(9)
_EACH = tl.constexpr(4)  # chunks of a program, at least
_ANY = ("key_len_ptr", "tile_first_ptr", "tile_len_ptr", "first_row")
_PLAIN = ("first_row", "num_tiles", "num_chunks")


@triton.jit
def run_len(chunks, used, ROOM: tl.constexpr):
    """Chunks of each program that has a tile of so many, where `used` tiles have ROOM programs."""
    runs = ROOM // used
    each = tl.maximum((chunks + runs - 1) // tl.maximum(runs, 1), _EACH)
    return tl.where((runs < _RUNS) | (chunks < _FEWEST), chunks, each)


@triton.jit(do_not_specialize_on_alignment=_ANY, do_not_specialize=_PLAIN)
def merge_cells_kernel(
    out_ptr,  # [R, H, D]
    highest_ptr,  # float32 [rows in cells, H, num_chunks(, D)]
    total_ptr,
    mixed_ptr,
    key_len_ptr,  # int64 [R]
    tile_first_ptr,  # int64 [T]
    tile_len_ptr,  # int64 [T]
    first_row,  # of the rows in cells
    num_tiles,
    num_chunks,
    H: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile
    LANES: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    """The results of LANES rows and a head, where the tile's chunks were shared."""
    head, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        gdc_wait()
    index = tl.arange(0, TILES)
    lengths = tl.load(tile_len_ptr + index, mask=index < num_tiles, other=0)
    used = tl.maximum(tl.sum((lengths > 0).to(tl.int32), 0), 1)
    first = tl.load(tile_first_ptr + tile)
    length = tl.load(tile_len_ptr + tile)
    row = tl.arange(0, ROWS)
    num_keys = tl.load(key_len_ptr + first + row, mask=row < length, other=0).to(tl.int32)
    chunks = (tl.max(num_keys, 0) + CHUNK - 1) // CHUNK
    lane = tl.program_id(2) * LANES + tl.arange(0, LANES)
    if run_len(chunks, used, ROOM) < chunks:
        if tl.program_id(2) * LANES < length:
            merge_parts(
                highest_ptr, total_ptr, mixed_ptr, out_ptr + ((first + lane) * H + head) * D,
                ((first - first_row + lane) * H + head) * num_chunks, 1, chunks, lane < length,
                tl.arange(0, DP), D,
            )  # fmt: skip
