"""Brute-force references: the rules of each layout and exit mode, without pool or cache.

For every output the whole sequence is computed anew. A rule says two things: in which order rows
can be computed, and which depth of an earlier position a row sees. Depths count from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlt_core.contract.protocols import LoopedModel
from tests.criteria import BY_LOGITS, BY_STATE, says
from tests.dense import NO_OPTIONS, DenseContext, Options

Group = tuple[Tensor, int]  # positions that run loop `depth` together


@dataclass(frozen=True, slots=True)
class Text:
    """n tokens with, per position, the depth its KV has and the depth its output is read at."""

    tokens: Tensor
    prompt_len: int
    kv_depth: Tensor
    read_depth: Tensor
    loops: int


Order = Callable[[Text], Iterable[Group]]
Seen = Callable[[Text, Tensor, int], Tensor]


def by_depth(s: Text) -> Iterable[Group]:
    """All positions that reach a depth take its loop together."""
    for depth in range(1, s.loops + 1):
        yield (s.kv_depth >= depth).nonzero()[:, 0], depth


def by_position(s: Text, start: int = 0) -> Iterable[Group]:
    """All loops of a position before the next one's."""
    for position in range(start, len(s.tokens)):
        for depth in range(1, int(s.kv_depth[position]) + 1):
            yield torch.tensor([position]), depth


def prompt_by_depth(s: Text) -> Iterable[Group]:
    """The prompt by depth, what was generated position by position."""
    for depth in range(1, s.loops + 1):
        yield torch.arange(s.prompt_len), depth
    yield from by_position(s, s.prompt_len)


def see_min(s: Text, rows: Tensor, depth: int) -> Tensor:
    """last_exited: depth min(d, KV depth); in mode full every KV depth is D."""
    return s.kv_depth.clamp(max=depth).expand(len(rows), -1)


def see_last(s: Text, rows: Tensor, depth: int) -> Tensor:
    """shared: the last values of every earlier position."""
    return s.kv_depth.expand(len(rows), -1)


def see_last_step(s: Text, rows: Tensor, depth: int) -> Tensor:
    """last_step: prompt rows as in last_exited, generated rows the last values."""
    generated = (rows >= s.prompt_len)[:, None]
    return torch.where(generated, see_last(s, rows, depth), see_min(s, rows, depth))


# Generated positions one after the other, which gives the same where none reads another's state.
SERIAL: dict[str, Order] = {
    "last_exited": prompt_by_depth,
    "shared": by_position,
    "last_step": prompt_by_depth,
    "no_fill": prompt_by_depth,
}


def see_written(s: Text, rows: Tensor, depth: int) -> Tensor:
    """no_fill: a position is absent at depths it has not reached."""
    return torch.where(s.kv_depth >= depth, depth, -1).expand(len(rows), -1)


RULES: dict[str, tuple[Order, Seen]] = {
    "last_exited": (by_depth, see_min),
    "shared": (by_position, see_last),
    "last_step": (prompt_by_depth, see_last_step),
    "no_fill": (by_depth, see_written),
}


@dataclass(slots=True, kw_only=True)
class Pass:
    """One pass over a sequence: state after each loop [D + 1, n, W], what the model shows of it
    [D + 1, n, N], gate logits [D + 1, n]; NaN where the model shows nothing."""

    states: Tensor
    shown: Tensor
    gates: Tensor
    logits: Callable[[Tensor], Tensor]  # read-out depths [n] -> logits [n, V]


def run_pass(model: LoopedModel, s: Text, layout: str, options: Options = NO_OPTIONS) -> Pass:
    """Compute every position of a sequence by a layout's rule."""
    order, seen = RULES[layout]
    n, positions = len(s.tokens), torch.arange(len(s.tokens))
    whole = s.prompt_len if options.chains else n  # positions that need no other's state
    kept: dict[tuple[str, int], Tensor] = {}

    def context(
        rows: Tensor, depth: int, sees: Tensor, before: Tensor | None = None
    ) -> DenseContext:
        sees = torch.where(positions < rows[:, None], sees, -1)
        sees = torch.where(positions == rows[:, None], depth, sees)
        return DenseContext(kept, rows, depth, sees, s.loops + 1, options, before)

    def boundary(rows: Tensor, before: Tensor | None = None) -> DenseContext:
        return context(rows, 0, torch.zeros(len(rows), n, dtype=torch.int64), before)

    start = model.prelude(s.tokens[:whole], boundary(positions[:whole]))
    states = torch.full((s.loops + 1, n, start.shape[1]), float("nan"), dtype=start.dtype)
    gates = torch.full((s.loops + 1, n), float("nan"))
    states[0, :whole] = start
    shown = torch.full_like(states, float("nan"))
    for rows, depth in (SERIAL[layout] if options.chains else order)(s):
        if depth == 1 and rows[0] >= whole:
            read = states[s.read_depth[rows - 1], rows - 1]
            states[0, rows] = model.prelude(s.tokens[rows], boundary(rows, read))
        ctx = context(rows, depth, seen(s, rows, depth))
        before = states[depth - 1, rows]
        states[depth, rows] = model.loop(before, ctx)
        signals = model.signals(states[depth, rows], before, ctx, frozenset({"gate", "state"}))
        if "gate" in signals:
            gates[depth, rows] = signals["gate"].float()
        if "state" in signals:
            width = signals["state"].shape[1]
            first = model.signals(before, before, ctx, frozenset({"state"}))["state"]
            shown[depth, rows, :width], shown[depth - 1, rows, :width] = signals["state"], first

    def logits(read_depth: Tensor) -> Tensor:
        ctx = boundary(positions)
        return model.head(model.coda(states[read_depth, positions], ctx), ctx)

    width = int((~shown[0, 0].isnan()).sum())
    return Pass(states=states, shown=shown[..., :width], gates=gates, logits=logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """When a row's output is read: policy "fixed", "trace" (depths) or one with a threshold.

    max_loops None: as deep as the request goes.
    """

    policy: str = "fixed"
    threshold: float = 1.0
    trace: Sequence[int] = ()
    loops: int
    min_loops: int = 1
    max_loops: int | None = None

    def depth(self, run: Pass, reads: Tensor, output: int) -> int:
        """The depth of output `output`, given by the last position; `reads` [n]: the depths that
        earlier positions are read at, and a deeper one for the last."""
        most = self.max_loops or self.loops
        for depth, leaves in enumerate(self._says(run, reads, output), 1):
            if depth >= most or (leaves and depth >= self.min_loops):
                return depth
        return most

    def _says(self, run: Pass, reads: Tensor, output: int) -> list[bool]:
        """What the policy says of the last position after loops 1 .. D."""
        if self.policy == "gate":
            cdf = 1 - (1 - run.gates[1:, -1].double().sigmoid()).cumprod(0)
            return [self.threshold < 1.0 and p >= self.threshold for p in cdf.tolist()]
        if self.policy == "trace":
            return [depth >= self.trace[output] for depth in range(1, self.loops + 1)]
        if self.policy in BY_STATE:
            return says(self.policy, run.shown[:, -1], self.threshold)
        if self.policy in BY_LOGITS:
            return says(self.policy, peeks(run, reads), self.threshold)
        return [False] * self.loops


def peeks(run: Pass, reads: Tensor) -> Tensor:
    """Logits of the last position after each loop [D, V], earlier positions read at `reads`."""
    found = []
    for depth in range(1, len(run.states)):
        here = reads.clone()
        here[-1] = depth
        found.append(run.logits(here)[-1])
    return torch.stack(found)


@dataclass(slots=True)
class Generated:
    """Tokens, read-out depths and the logits of each output."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def generate(
    model: LoopedModel,
    prompt: Sequence[int],
    num_outputs: int,
    exits: Exit,
    *,
    layout: str = "last_exited",
    full: bool = False,
    options: Options = NO_OPTIONS,
    known: Sequence[int] | None = None,
) -> Generated:
    """Greedy outputs, or the logits and depths at `known` ones (forced)."""
    out, loops = Generated(), exits.loops
    for index in range(num_outputs):
        tokens = torch.tensor([*prompt, *out.tokens])
        # The position that gives the output is computed at every depth, then decided.
        reads = torch.full_like(tokens, loops)
        reads[len(prompt) :] = torch.tensor([*out.depths[1:], loops][:index], dtype=torch.int64)
        if full and index:
            reads[len(prompt) - 1] = out.depths[0]
        kv_depth = torch.full_like(tokens, loops) if full else reads.clone()
        s = Text(tokens, len(prompt), kv_depth, reads, loops)
        run = run_pass(model, s, layout, options)
        decides = full or index > 0
        reads[-1] = exits.depth(run, reads, index) if decides else loops
        logits = run.logits(reads)[-1]
        out.depths.append(int(reads[-1]))
        out.tokens.append(int(logits.argmax()) if known is None else known[index])
        out.logits.append(logits)
    return out
