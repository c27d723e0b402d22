"""A context for models without pool, pages, batches or cache: plain torch, written apart.

Every key and value of every depth is kept by (depth, position), and each row says which depth of
each earlier position it sees. tests/reference.py holds those rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rlt_core.contract.protocols import RopeSpec
from rlt_core.runtime.philox import MASK, philox4x32


class DenseOps:
    """contract.protocols.Operators in the shortest plain torch."""

    def embed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return weight[tokens]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x @ weight.T if bias is None else x @ weight.T + bias

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return self.rms_norm(x + residual, weight, eps), x + residual

    def norm_add_norm(
        self, sub: Tensor, residual: Tensor, w_post: Tensor, w_next: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total = residual + self.rms_norm(sub, w_post, eps)
        return self.rms_norm(total, w_next, eps), total

    def add_norm(self, sub: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(sub + residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def linear_silu_mul(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.silu_mul(self.linear(x, weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A model's own options as one request sets them; what it leaves out is not here.

    tables: a row a position. chains: generated positions read the state of the one before.
    """

    state_seed: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    chains: bool = False


NO_OPTIONS = Options()
# What a model that declares these options finds where a request leaves them out.
DEFAULTS = {"state_scale": 1.0, "warm_start": False}


class DenseContext:
    """contract.protocols.LoopContext for rows of one sequence of n positions.

    seen [R, n]: the depth of each position whose keys a row sees, -1 for none; own positions
    stand at the row's depth. kept: (track, layer) -> keys and values [2, depths, n, G, d], NaN
    where nothing was written, so that a wrong rule shows. before: the states [R, W] that
    `previous` gives, None where it gives none.
    """

    def __init__(
        self,
        kept: dict[tuple[str, int], Tensor],
        positions: Tensor,
        depth: int,
        seen: Tensor,
        num_depths: int,
        options: Options = NO_OPTIONS,
        before: Tensor | None = None,
    ) -> None:
        self._kept, self.positions, self._seen = kept, positions, seen
        self.depth = torch.full_like(positions, depth)
        self._at, self._num_depths, self._options = depth, num_depths, options
        self._before = before
        self.ops = DenseOps()

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
        if qk_bias is not None:
            q, k = q + qk_bias[0], k + qk_bias[1]
        if qk_norm is not None:
            q = self.ops.rms_norm(q, qk_norm[0], qk_norm[2])
            k = self.ops.rms_norm(k, qk_norm[1], qk_norm[2])
        if rope is not None:
            both = rotate(torch.cat((q, k), 1), self.positions, rope)
            q, k = both.split_with_sizes((q.shape[1], k.shape[1]), 1)
        n = self._seen.shape[1]
        if (track, layer) not in self._kept:
            empty = torch.full((2, self._num_depths, n, *k.shape[1:]), float("nan"), dtype=k.dtype)
            self._kept[track, layer] = empty
        kept = self._kept[track, layer]
        kept[:, self._at, self.positions] = torch.stack((k, v))
        hidden = self._seen < 0
        both = kept[:, self._seen.clamp(min=0), torch.arange(n)]  # [2, R, n, G, d]
        both = both.masked_fill(hidden[None, :, :, None, None], 0.0)
        keys, values = both.repeat_interleave(q.shape[1] // k.shape[1], dim=3).unbind(0)
        scores = torch.einsum("rhd,rnhd->rhn", q, keys) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("rhn,rnhd->rhd", weights, values)

    def random_bits(self, purpose: int, count: int) -> Tensor:
        low, high = (torch.tensor([[self._options.state_seed >> by & MASK]]) for by in (0, 32))
        lane = torch.arange(-(-count // 4))[None]
        zero = torch.zeros_like(lane)
        words = philox4x32(low, high, self.positions[:, None], zero + purpose, lane, zero)
        return torch.stack(words, -1).flatten(1)[:, :count]

    def option(self, name: str) -> Tensor:
        values = {**DEFAULTS, "state_seed": self._options.state_seed, **self._options.values}
        kind = {bool: torch.bool, int: torch.int64, float: torch.float32}[type(values[name])]
        return torch.full_like(self.positions, 0, dtype=kind) + torch.tensor(values[name])

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        if name in self._options.tables:
            return self._options.tables[name][self.positions], self._all(True)
        # One column of zeros stands for any width.
        return self._nothing()[:, :1], self._all(False)

    def previous(self) -> tuple[Tensor, Tensor]:
        if self._before is not None:
            return self._before, self._all(True)
        return self._nothing(), self._all(False)

    def _all(self, value: bool) -> Tensor:
        return torch.full_like(self.positions, value, dtype=torch.bool)

    def _nothing(self) -> Tensor:
        # As wide as any model may ask, and without memory.
        return torch.zeros(1, 1).expand(len(self.positions), 1 << 16)


def rotate(x: Tensor, positions: Tensor, rope: RopeSpec) -> Tensor:
    """Rotary embedding of x [R, H, d] as complex numbers; angles are float32, as RopeSpec says."""
    longest = max(positions.tolist(), default=0)
    turns = _turns(rope, 1 << longest.bit_length())[positions]
    turned, rest = x[..., : rope.dim].double(), x[..., rope.dim :]
    if rope.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    new = torch.complex(first, second) * turns
    parts = (new.real, new.imag)
    both = torch.stack(parts, -1).flatten(-2) if rope.interleaved else torch.cat(parts, -1)
    return torch.cat((both.to(x.dtype), rest), dim=-1)


@lru_cache(maxsize=64)
def _turns(rope: RopeSpec, length: int) -> Tensor:
    """Complex numbers that turn the pairs of positions 0 .. length - 1: [length, 1, dim / 2]."""
    pair = torch.arange(rope.dim // 2, dtype=torch.float32)
    turns = 1.0 / rope.theta ** (2 * pair / rope.dim)
    angle = (torch.arange(length).float()[:, None, None] * turns).double()
    return torch.polar(torch.ones_like(angle), angle)
