"""Attention backends, and the rows that they get.

Shapes: R rows, H query heads, G KV heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVRows:
    """Where the rows of one `attend` call read and write; made by the runtime.

    pool [pages, unit_layers, 2, page_size, G, d]; `unit` is the layer inside the page.
    write_page, write_offset int64 [R] (the sentinel page for rows that write nothing).
    tile_pages int64 [T, chunks, pages_per_chunk]; tile_rows int64 [T, lanes] (row numbers, R
    for none; runtime.tiles sets the lanes); key_len int64 [R + 1] positions a row may see (0 for
    the padding row). Without `store` every row has a tile to itself.
    hidden: None, or bool [T, chunks, 128]: keys that count as absent for all rows of a tile, for
    backends with `hidden_keys`. Their memory may hold anything, NaN included.
    kept: what a backend makes of these rows and wants again: the calls of one launch that differ in
    layer, `unit` and `store` alone share it.
    """

    pool: Tensor
    unit: int
    write_page: Tensor
    write_offset: Tensor
    tile_pages: Tensor
    tile_rows: Tensor
    row_tile: Tensor
    row_lane: Tensor
    key_len: Tensor
    store: bool = field(default=True)
    hidden: Tensor | None = None
    kept: dict[str, object] = field(default_factory=dict)


class Attention(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
        """q [R, H, d], k and v [R, G, d], rotated -> [R, H, d]; writes first if rows.store."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation still to be made: cos, sin [positions, dim / 2] by position; float32 where
    pairs are `interleaved`, else in the rows' dtype, as the products are rounded to it."""

    cos: Tensor
    sin: Tensor
    dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """KVRows for backends that walk page tables themselves (PagedAttention).

    pool [pages, unit_layers, 2, page_size, G, d] and `unit` as in KVRows. pages int32 [X, W]: page
    tables, page_row int64 [R] each row's own; key_len int64 [R + 1]: positions a row may see, its
    own the last; 0 for a row that does nothing, whose result may be anything. The row writes
    its own position with `store`. Rows before num_single are alone; the others are in cells, cut
    into tiles of at most tile_rows rows: tile_first and tile_len int64 [T] (length 0 for padding,
    which comes last).
    hidden: None, or bool [., keys] with the row hidden_row int64 [R] of each row (KVRows.hidden).
    kept: as in KVRows.
    """

    pool: Tensor
    unit: int
    pages: Tensor
    page_row: Tensor
    key_len: Tensor
    num_single: int
    tile_first: Tensor
    tile_len: Tensor
    tile_rows: int
    store: bool = field(default=True)
    hidden: Tensor | None = None
    hidden_row: Tensor | None = None
    kept: dict[str, object] = field(default_factory=dict)


class PagedAttention(Attention, Protocol):
    """An attention backend that also rotates, writes and walks the pages by itself.

    `tile_rows` is the most rows of a tile that it wants."""

    tile_rows: int

    def paged(
        self, q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, scale: float, turn: Turn | None
    ) -> Tensor:
        """q [R, H, d], k and v [R, G, d], not yet rotated -> [R, H, d]. The last two dimensions of
        each are contiguous."""
        ...
