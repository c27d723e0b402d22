"""Rows as the sequences that a FlashAttention package takes: queries, keys and pages of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlt_core.contract.protocols import PagedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """S sequences. table int32 [S, W]: the pages of each; lengths int32 [S]: its keys; starts int32
    [S + 1]: where its queries begin; key_starts int32 [S + 1]: sums of the lengths. No sequence has
    more than most_rows queries or most_keys keys. The last query sees all of its keys, each one
    before it one key less.
    """

    table: Tensor
    lengths: Tensor
    starts: Tensor
    key_starts: Tensor
    most_rows: int
    most_keys: int


def single_spans(rows: PagedRows) -> Spans:
    """The rows alone, a sequence each, over all keys up to their own."""
    num = rows.num_single
    return _kept(rows, "flash.single", lambda: _alone(rows, rows.key_len[:num]))


def earlier_spans(rows: PagedRows) -> Spans:
    """The rows alone over the keys before their own."""
    num = rows.num_single
    return _kept(rows, "flash.earlier", lambda: _alone(rows, (rows.key_len[:num] - 1).clamp(min=0)))


def cell_spans(rows: PagedRows) -> Spans:
    """The tiles, a sequence each; tiles of padding are empty, and their queries are none."""
    return _kept(rows, "flash.cells", lambda: _tiles(rows))


def _kept(rows: PagedRows, name: str, make: Callable[[], Spans]) -> Spans:
    """What was made for another layer of the launch, else what is made now."""
    found = rows.kept.get(name)
    if not isinstance(found, Spans):
        found = rows.kept[name] = make()
    return found


def _alone(rows: PagedRows, lengths: Tensor) -> Spans:
    num = rows.num_single
    starts = torch.arange(num + 1, dtype=torch.int32, device=lengths.device)
    return _spans(rows, rows.page_row[:num], lengths, starts, 1)


def _tiles(rows: PagedRows) -> Spans:
    """Positions of a tile follow each other; rows in between that do nothing have no length, so the
    tile's comes from those that have one."""
    lane = torch.arange(rows.tile_rows, device=rows.tile_first.device)
    there = lane < rows.tile_len[:, None]
    none = rows.key_len.shape[0] - 1
    first = torch.where(rows.tile_len > 0, rows.tile_first, 0)  # of padding it may be any
    own = rows.key_len[torch.where(there, first[:, None] + lane, none)]
    behind = rows.tile_len[:, None] - 1 - lane
    lengths = torch.where(own > 0, own + behind, 0).amax(1)
    starts = torch.nn.functional.pad(rows.tile_len, (1, 0)).cumsum(0, dtype=torch.int32)
    return _spans(rows, rows.page_row[first], lengths, starts, rows.tile_rows)


def _spans(
    rows: PagedRows, page_row: Tensor, lengths: Tensor, starts: Tensor, most_rows: int
) -> Spans:
    return Spans(
        table=rows.pages[page_row],
        lengths=lengths.int(),
        starts=starts,
        key_starts=torch.nn.functional.pad(lengths, (1, 0)).cumsum(0, dtype=torch.int32),
        most_rows=most_rows,
        most_keys=rows.pages.shape[1] * rows.pool.shape[3],
    )
