"""The rows of one launch, as its context finds their pages by them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from rlt_core.runtime.tiles import Tiles


@dataclass(slots=True, kw_only=True)
class Rows:
    """The rows of one launch: int64 [R] each, live bool [R] (others write nothing).

    write_plane and read_plane are the planes of per-depth tracks; 0 where only boundary tracks
    are touched. num_chunks covers the longest row.
    """

    slot: Tensor
    position: Tensor
    depth: Tensor
    write_plane: Tensor
    read_plane: Tensor
    live: Tensor
    tiles: Tiles
    num_chunks: int
    # What has been made already: int64 [R + 1], and int64 [R] by track and part.
    key_len: Tensor | None = None
    page_rows: dict[tuple[str, int], Tensor] = field(default_factory=dict)
