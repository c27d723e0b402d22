"""A model, and what it is given: operators, and a context for each launch.

Shapes: R rows, W state_width, H query heads, G KV heads, d head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
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
