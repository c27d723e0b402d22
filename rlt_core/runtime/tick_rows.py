"""The rows of one tick on the device: what the host sent, and all rows together."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rlt_core.runtime.rows import Rows
from rlt_core.runtime.tiles import Tiles


@dataclass(slots=True, kw_only=True)
class TickTensors:
    """A TickInput on the device. R decode rows, N prompt rows, F of them in finishing cells.

    prompt_*: int64 or bool [N] as in PromptRows. finish: int64 [F], rows of the prompt part
    whose cell ends. emit, score: int64, places among the F rows that give the next token, or a
    logprob of a known one. tail: int64, the last rows of the cells that end, of the prompt part;
    None unless the model reads predecessors. asks: int64 [A], rows of all R + N that
    leave by the policy's word: decode rows, and forced ones without a depth of their own.
    tiles of (R + N) rows, of (leave + F) rows, and of the A rows alone (None unless the policy
    reads logits). Where a slot has several lanes, R counts rows there; guess_tiles are of one row a
    slot (None unless tokens are guessed). fan: rows of a slot in this tick; least_acceptance as in
    TickInput. enters, leaves: whether a row may enter or leave in this tick; in one of prompts
    alone the host knows that none does. num_rows: int32 [1] on the device, where rows from there on
    are padding. tick: a number, or an int64 tensor of no dimension. plain: the prompt rows are as
    MixedInputs.fits wants them, and those that ask stand in front.
    """

    tick: int | Tensor
    decode_slots: Tensor
    place: Tensor
    slot: Tensor
    token: Tensor
    position: Tensor
    depth: Tensor
    exit_at: Tensor
    rule: Tensor
    known_next: Tensor
    target: Tensor
    finish: Tensor
    emit: Tensor
    resume: Tensor
    score: Tensor
    asks: Tensor
    tail: Tensor | None
    tiles: Tiles
    coda_tiles: Tiles
    ask_tiles: Tiles | None
    guess_tiles: Tiles | None
    num_chunks: int
    num_leave: int
    has_prompt: bool
    fan: int = 1
    least_acceptance: int | Tensor = 0
    enters: bool = True
    leaves: bool = True
    num_rows: Tensor | None = None
    plain: bool = False


@dataclass(slots=True)
class Batch:
    """All rows of the tick, decode rows first: homes, slots, positions, depths after this loop."""

    home: Tensor
    slot: Tensor
    position: Tensor
    depth: Tensor
    rule: Tensor
    exit_at: Tensor
    live: Tensor
    enters: Tensor

    def rows(self, index: Tensor | slice) -> Batch:
        """These rows alone; index int64 [A], or a slice of them."""
        return Batch(*(getattr(self, field.name)[index] for field in fields(self)))


def boundary_rows(batch: Batch, live: Tensor, tiles: Tiles, num_chunks: int) -> Rows:
    """The batch's rows for a launch that touches boundary tracks only, at depth 0."""
    none = torch.zeros_like(batch.slot)
    return Rows(
        slot=batch.slot,
        position=batch.position,
        depth=none,
        write_plane=none,
        read_plane=none,
        live=live,
        tiles=tiles,
        num_chunks=num_chunks,
    )


def num_to_last(where: Tensor) -> Tensor:
    """How many rows there are up to the last one that is meant, bool [R]: int32 [1]."""
    count = torch.arange(1, len(where) + 1, dtype=torch.int32, device=where.device)
    return torch.where(where, count, 0).amax(0, keepdim=True)
