"""What the objects behind the factories look like. No base class: fit the shape.

Shapes: R rows, W state_width, H query heads, G KV heads, d head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from rlt_core.contract.layouts import LayoutTables

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding on the first `dim` sizes of a head.

    Angle of pair i at position p: p * theta ** (-2 i / dim), in float32. `interleaved` pairs
    (2i, 2i+1), else (i, i + dim/2). Source: RoFormer (arXiv 2104.09864).
    """

    theta: float
    dim: int
    interleaved: bool = False


class Operators(Protocol):
    """The operators a model may call; weights are [out, in], rows are dimension 0.

    Every one rounds where the model authors' code rounds: results are in the input's dtype,
    norms and SiLU are computed in float32. Weights do not change once they are loaded: a kernel may
    read them before the kernels in front of it have ended, so none may be made on the way.
    """

    def embed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """tokens int64 [R], weight [V, W] -> [R, W]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [R, in] -> [R, out] (packed weights give packed results)."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps), cast back, times weight; over the last dimension."""
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual)."""
        ...

    def norm_add_norm(
        self, sub: Tensor, residual: Tensor, w_post: Tensor, w_next: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """h = residual + rms_norm(sub, w_post); returns (rms_norm(h, w_next), h). Ouro."""
        ...

    def add_norm(self, sub: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """rms_norm(sub + residual, weight): the residual stream itself is normed. Huginn."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [R, 2F] (gate first) -> silu(gate) * up, [R, F]."""
        ...

    def linear_silu_mul(self, x: Tensor, weight: Tensor) -> Tensor:
        """silu_mul(linear(x, weight)) to the bit: x [R, in], weight [2F, in] -> [R, F]."""
        ...


class LoopContext(Protocol):
    """What a model sees of a launch. It never sees pages, planes, batches or requests."""

    @property
    def positions(self) -> Tensor:
        """int64 [R]."""
        ...

    @property
    def depth(self) -> Tensor:
        """int64 [R]: the loop being run, from 1; 0 in the prelude, the exit depth in the coda."""
        ...

    @property
    def ops(self) -> Operators: ...

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
        """Causal attention of each row over its request's positions up to its own.

        q [R, H, d], k and v [R, G, d], all unrotated. qk_bias [2, H, d] is added to q and k,
        then qk_norm (q weight [d], k weight [d], eps), then rope. With `store` k and v are
        written first; without, a row sees its own k and v and the pool does not change.
        Returns [R, H, d].
        """
        ...

    def random_bits(self, purpose: int, count: int) -> Tensor:
        """int64 [R, count] holding uint32, keyed by (the request's state seed, position, purpose).

        The state seed is the model's int option `state_seed`; 0 where it declares none.
        """
        ...

    def option(self, name: str) -> Tensor:
        """A scalar option that the model declared (ModelSpec.options), per row: [R].

        float32 for "float", int64 for "int", bool for "flag": the request's value, or the default.
        PluginError for a name that is not declared so.
        """
        ...

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        """Each row's own row of its request's table: (values [R, width] in the model's dtype,
        given bool [R]). Zeros and False where the request gave no table."""
        ...

    def previous(self) -> tuple[Tensor, Tensor]:
        """The read-out state (before the coda) of the position before each row's, in the same
        request: (state [R, W], given bool [R]); for `prelude` alone.

        Given for generated positions of requests that set an option with `chains`, when they are
        generated as well as when they are replayed or scored. Zeros and False elsewhere.
        """
        ...


class LoopedModel(Protocol):
    """A looped model. A row's result may depend on no other row."""

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """tokens int64 [R] -> state [R, W]."""
        ...

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """One pass of the looped block for every row; rows may be at different depths."""
        ...

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """The signals asked for, of those declared (never `logits`): {name: [R, ...]}.

        `state` [R, N], of any width N, must follow from the argument `state` alone: for a policy
        that compares, the core asks once more with the state before the loop in its place.
        """
        ...

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """The layers after the loops that keep KV; the identity where there are none."""
        ...

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V]; keeps no KV."""
        ...


class WeightedModel(LoopedModel, Protocol):
    """What the loader needs beside the five methods."""

    def weight_table(self) -> Mapping[str, Tensor]:
        """Checkpoint name -> the tensor (often a view of a packed one) to fill in place."""
        ...

    def ignored_weights(self) -> frozenset[str]:
        """Names that may lie in a checkpoint and are computed instead (rope tables)."""
        ...

    def tied_weights(self) -> Mapping[str, str]:
        """Name -> the name it must equal where both are stored."""
        ...


class ModelFactory(Protocol):
    def __call__(
        self, shape: object, *, device: torch.device, dtype: torch.dtype
    ) -> WeightedModel: ...


class KVLayout(Protocol):
    def tables(self, loops: int) -> LayoutTables:
        """The tables of a request that uses `loops` loops."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Per-row state of a policy: shape after the row dimension, dtype's name, start value.

    The core resets it when a row enters at depth 1.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: Literal["float32", "int64", "bool"] = "float32"
    initial: float = 0.0


class ExitPolicy(Protocol):
    """When a row exits. Minimum and maximum depth are the core's."""

    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        """The per-row tensors it keeps between loops of one token."""
        ...

    def decide(
        self,
        signals: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        params: Mapping[str, Tensor],
        depth: Tensor,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(exit bool [R], new state). Pure: no argument is changed, nothing read to the host.

        signals hold what the spec needs: `gate` [R]; `state` and `state_before` [R, N], the
        model's state after the loop just run and before it (before the first loop what the
        prelude gave); `logits` float32 [R, V]. A row's bits may depend on that row alone.
        params hold one value per row ([R]); a "depths" parameter gives the row's own entry.
        depth int64 [R] counts the loop just run.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyView:
    """What a host half may look at; it never sees, and never names, a decode row's depth.

    num_lanes: rows of a request that may be in flight together (entry rule on_guess). row_cost:
    what a decode row adds to a tick, as a share of the tick without it, as far as memory traffic
    tells. trust: float32 [num_slots], how often a slot's guesses held of late (0 for empty slots);
    it changes from tick to tick. None: nothing is guessed.
    """

    num_slots: int
    num_free_slots: int
    num_decode_slots: int
    num_prompt_requests: int
    num_waiting: int
    max_tick_tokens: int
    num_lanes: int = 1
    row_cost: float = 0.0
    trust: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPlan:
    """How many waiting requests may be admitted now, and the rows a tick may hold.

    least_acceptance, where tokens are guessed: a request does so while at least this share of its
    recent guesses held; above 1 none does.
    """

    num_admissions: int
    prompt_rows: int
    decode_rows: int
    least_acceptance: float = 0.0


class Strategy(Protocol):
    def plan(self, view: StrategyView) -> StrategyPlan: ...


# Not frozen: one is made for every cell, and freezing doubles its cost.
@dataclass(slots=True, kw_only=True)
class PromptView:
    """One prompt in progress: `next_start` is the first position whose chunk has not begun; the
    newest chunk that runs has `running_len` rows (0: none runs) and has finished `running_depth`
    loops."""

    length: int
    next_start: int
    running_len: int
    running_depth: int
    loops: int
    by_position: bool


class PromptMode(Protocol):
    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        """Rows of the next chunk of this prompt, at most `budget`; 0 when it must wait."""
        ...


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
