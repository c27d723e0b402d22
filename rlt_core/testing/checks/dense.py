"""A layout's rule without pool, pages or batches: every plane of every position, in plain tensors.

Whole rows of one text, one after the other: what a loop writes, what it finds of each earlier
position, what an exit fills and what the end of the prompt drops, straight from the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.protocols import LoopedModel, RopeSpec
from rlt_core.runtime import ops_torch
from rlt_core.runtime.rope import RopeTables, prepare_qk

Planes = dict[tuple[str, int], Tensor]  # (track, layer) -> k and v [2, planes, n, G, d]


class DenseContext:
    """What the kit's own model needs of a LoopContext, for rows of one text.

    `write` is the plane they write, `seen` [R, n] the plane in which they find each position, -1
    for none.
    """

    ops = ops_torch

    def __init__(self, text: DenseText, rows: Tensor, depth: int, write: int, seen: Tensor) -> None:
        self._text, self.positions, self._write, self._seen = text, rows, write, seen
        self.depth = torch.full_like(rows, depth)

    def attend(
        self,
        track: str,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rope: RopeSpec | None = None,
        qk_bias: Tensor | None = None,
        qk_norm: tuple[Tensor, Tensor, float] | None = None,
        store: bool = True,
    ) -> Tensor:
        """As the contract says, over all positions at once."""
        table = None if rope is None else self._text.rope.get(rope)
        q, k = prepare_qk(q, k, self.positions, table=table, qk_bias=qk_bias, qk_norm=qk_norm)
        kept = self._text.plane_of(track, layer, k)
        kept[:, self._write, self.positions] = torch.stack((k, v))
        hidden = self._seen < 0
        both = kept[:, self._seen.clamp(min=0), torch.arange(self._seen.shape[1])]
        both = both.masked_fill(hidden[None, :, :, None, None], 0.0)
        keys, values = both.repeat_interleave(q.shape[1] // k.shape[1], dim=3).unbind(0)
        scores = torch.einsum("rhd,rnhd->rhn", q, keys) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("rhn,rnhd->rhd", weights, values)


class DenseText:
    """One request: a prompt, then tokens that are read out at given depths."""

    def __init__(self, model: LoopedModel, tables: LayoutTables, num_positions: int) -> None:
        self.model, self.tables, self.num = model, tables, num_positions
        self.loops = len(tables.prompt.write)
        self.rope = RopeTables(num_positions, "cpu", torch.float32)
        self.kv_depth = torch.zeros(num_positions, dtype=torch.int64)
        self._planes: Planes = {}

    def plane_of(self, track: str, layer: int, like: Tensor) -> Tensor:
        """The planes of one layer; what was never written is NaN."""
        if (track, layer) not in self._planes:
            shape = (2, self.tables.num_planes, self.num, *like.shape[1:])
            self._planes[track, layer] = torch.full(shape, torch.nan)
        return self._planes[track, layer]

    def generate(
        self, prompt: Sequence[int], depths: Sequence[int], *, full: bool
    ) -> tuple[list[int], Tensor]:
        """Greedy tokens read out at `depths`, and their logits [outputs, V]."""
        state, tokens, found = self._prompt(torch.tensor(prompt), depths[0]), list[int](), []
        for index, depth in enumerate(depths):
            row = torch.tensor([len(prompt) - 1 + index])
            if index:
                state = self._position(row, tokens[-1], depth, full=full)
            logits = self.model.head(self._coda(row, state, depth), self._at(row, depth))
            found.append(logits[0])
            tokens.append(int(logits[0].argmax()))
        return tokens, torch.stack(found)

    def _prompt(self, tokens: Tensor, read: int) -> Tensor:
        """All loops of the prompt; the last position's state at depth `read`."""
        rows, rule = torch.arange(len(tokens)), self.tables.prompt
        state = self.model.prelude(tokens, self._at(rows, 0))
        self.kv_depth[rows] = self.loops
        read_out = state[-1:]
        by_position = self.tables.prompt_order == "position"
        for group in rows.split(1) if by_position else (rows,):
            for depth in range(1, self.loops + 1):
                state[group] = self._loop(rule, group, depth, state[group])
                if depth == read and int(group[-1]) == len(tokens) - 1:
                    read_out = state[-1:].clone()
        # Every position runs the coda on its last state, the one that emits on its read-out.
        self._coda(rows[:-1], state[:-1], self.loops)
        dropped = [p for p in range(self.tables.num_planes) if p not in self.tables.kept]
        for (track, _), kept in self._planes.items():
            if self._per_depth(track):
                kept[:, dropped] = torch.nan
        return read_out

    def _position(self, row: Tensor, token: int, depth: int, *, full: bool) -> Tensor:
        """All loops of one generated position; its state at `depth`."""
        rule = self.tables.decode
        state = self.model.prelude(torch.tensor([token]), self._at(row, 0))
        read_out, last = state, self.loops if full else depth
        self.kv_depth[row] = last
        for loop in range(1, last + 1):
            state = self._loop(rule, row, loop, state)
            read_out = state if loop == depth else read_out
        source, targets = rule.write[last - 1], rule.fill[last - 1]
        for (track, _), kept in self._planes.items():
            if self._per_depth(track):
                for target in targets:
                    kept[:, target, row] = kept[:, source, row]
        return read_out

    def _loop(self, rule: PlaneRule, rows: Tensor, depth: int, state: Tensor) -> Tensor:
        write, read = rule.write[depth - 1], rule.read[depth - 1]
        seen = torch.full((len(rows), self.num), read)
        if self.tables.missing == "hidden":
            seen = torch.where(self.kv_depth <= read, -1, seen)
        ctx: Any = DenseContext(self, rows, depth, write, self._causal(rows, seen, write))
        return self.model.loop(state, ctx)

    def _coda(self, rows: Tensor, state: Tensor, depth: int) -> Tensor:
        return self.model.coda(state, self._at(rows, depth)) if len(rows) else state

    def _at(self, rows: Tensor, depth: int) -> Any:
        """A context of boundary tracks, which have the single plane 0."""
        seen = torch.zeros((len(rows), self.num), dtype=torch.int64)
        return DenseContext(self, rows, depth, 0, self._causal(rows, seen, 0))

    def _causal(self, rows: Tensor, seen: Tensor, own: int) -> Tensor:
        at = torch.arange(self.num)
        seen = torch.where(at < rows[:, None], seen, -1)
        return torch.where(at == rows[:, None], own, seen)

    def _per_depth(self, track: str) -> bool:
        return track == "core"
