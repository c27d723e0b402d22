"""The rows of a request whose tokens are known: its prompt, its replay, the text to score.

A preempted request is replayed: prompt positions by the prompt's rule, then its generated tokens
but the last, each leaving at the depth it left at before; the last one enters the slot as known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlt_core.contract.layouts import LayoutTables
from rlt_core.runtime.batch import I32, I64
from rlt_core.schedule.request import EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """How known rows are ordered: rows below (by_position) and from (serial) the border go one at
    a time, and so do those that ask the policy (alone); drops: planes are given back at the
    border."""

    by_position: bool
    serial: bool
    drops: bool
    alone: bool


def cell_rules(tables: LayoutTables, *, alone: bool) -> CellRules:
    """The rules of requests with these tables. alone: the policy reads logits of a coda that keeps
    KV, so the coda of every earlier position must have run before a row asks."""
    return CellRules(
        by_position=tables.prompt_order == "position",
        serial=tables.replay_is_serial,
        drops=len(tables.kept) < tables.num_planes,
        alone=alone,
    )


@dataclass(slots=True, kw_only=True)
class Forced:
    """Forced rows of one request, F of them, at positions 0 .. F - 1.

    tokens, exit_at, target: int64 [F] as in PromptRows; exit_at None: all at `loops`; target None:
    no logprob is wanted. border: the first position of the decode rule. emits: the last row gives
    the first output; known_next: the token that enters the slot after it, -1 when it is not known.
    """

    tokens: I64
    exit_at: I64 | None
    target: I64 | None
    border: int
    loops: int
    full: bool
    emits: bool
    known_next: int
    rules: CellRules

    def __len__(self) -> int:
        return len(self.tokens)

    def segment_end(self, start: int) -> int:
        """Where the cells that may share a chunk with row `start` end."""
        rules, end = self.rules, len(self.tokens)
        if start < self.border and (rules.drops or rules.serial != rules.by_position):
            end = min(self.border, end)
        if rules.alone and self.exit_at is not None:
            asking = np.flatnonzero(self.exit_at[start:end] == 0)
            end = start + int(asking[0]) if len(asking) and asking[0] else end
        return end

    def one_by_one(self, start: int) -> bool:
        """Whether the cell at `start` has one row."""
        if self.rules.alone and self.exit_at is not None and self.exit_at[start] == 0:
            return True
        return self.rules.by_position if start < self.border else self.rules.serial

    def num_loops(self, start: int, end: int) -> int:
        """Ticks that a cell of these rows runs: until its deepest row has left."""
        if self.full or self.exit_at is None:
            return self.loops
        exits = self.exit_at[start:end]
        return self.loops if not exits.all() else int(exits.max())


def forced_rows(
    request: EngineRequest,
    rules: CellRules,
    *,
    full: bool,
    tokens: I32,
    depths: I32,
    num_scored: int,
) -> Forced:
    """The forced rows of a request that has given outputs `tokens` read at `depths` [n]."""
    score = request.kind == "score"
    border = request.prompt_len if score else len(request.prompt)
    known = _known_tokens(request, tokens)
    return Forced(
        tokens=known,
        exit_at=_exits(request, len(known), border, depths, full),
        target=_targets(request, len(known), num_scored),
        border=border,
        loops=request.loops,
        full=full,
        emits=not score and len(tokens) == 0,
        known_next=int(tokens[-1]) if len(tokens) else -1,
        rules=rules,
    )


def _known_tokens(request: EngineRequest, tokens: I32) -> I64:
    prompt = request.prompt
    if request.kind == "score":
        # The last token predicts nothing that is known.
        return prompt[: max(len(prompt) - 1, 1)]
    return np.concatenate((prompt, tokens[:-1])) if len(tokens) > 1 else prompt


def _exits(request: EngineRequest, length: int, border: int, depths: I32, full: bool) -> I64 | None:
    if not full and border >= length:
        return None
    exit_at = np.full(length, request.loops, np.int64)
    exit_at[border:] = 0 if request.kind == "score" else depths[1:]
    if full and 0 < border <= length:
        # In mode full the last prompt position's read-out is decided, once, by the policy.
        exit_at[border - 1] = depths[0] if len(depths) else 0
    return exit_at


def _targets(request: EngineRequest, length: int, num_scored: int) -> I64 | None:
    if request.kind != "score" and request.prompt_logprobs is None:
        return None
    target = np.full(length, -1, np.int64)
    following = request.prompt[num_scored + 1 : length + 1]
    target[num_scored : num_scored + len(following)] = following
    return target
