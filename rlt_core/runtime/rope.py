"""Rotary embedding from tables by position, and what comes before it (bias and norm of q, k).

The tables are built once. Angles are float32, as in the models' own code; cosine and sine are
taken in float64 and rounded, so that a position's values do not depend on its place in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_core.contract.protocols import Turn
from rlt_core.runtime.ops_torch import rms_norm

if TYPE_CHECKING:
    from rlt_core.contract import RopeSpec


Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin [more than max_positions, dim / 2] of one RopeSpec.

    Halves are rotated in the activation dtype (cos and sin rounded to it), as Llama's code does;
    interleaved pairs in float32 with one rounding at the end, as Huginn's does.
    """

    spec: RopeSpec
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, spec: RopeSpec, max_positions: int, device: torch.device | str, dtype: torch.dtype
    ) -> RopeTable:
        """The table for positions 0 .. max_positions; a finished row may stand on the last."""
        angles = _angles(spec, max_positions + 1).double()
        kept = torch.float32 if spec.interleaved else dtype
        cos, sin = (f(angles).float().to(device, kept) for f in (torch.cos, torch.sin))
        return cls(spec, cos, sin)

    @property
    def turn(self) -> Turn:
        """The table for attention backends that rotate themselves."""
        return Turn(self.cos, self.sin, self.spec.dim, self.spec.interleaved)

    def at(self, positions: Tensor) -> Angles:
        """What `apply_rope` takes at int64 positions [R]: for halves cos and sin [R, 1, dim], for
        pairs cos [R, 1, dim / 2, 1] and sin [R, 1, dim / 2, 2]; sin negated for the first of two.
        """
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        sin = self.sin.index_select(0, positions).unsqueeze(1)
        if self.spec.interleaved:
            return cos.unsqueeze(-1), torch.stack((sin.neg(), sin), dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((sin.neg(), sin), dim=-1)


class RopeTables:
    """One table per RopeSpec, built at first use (the runtime's warm-up) and kept."""

    def __init__(self, max_positions: int, device: torch.device | str, dtype: torch.dtype) -> None:
        self.max_positions, self.device, self.dtype = max_positions, device, dtype
        self._tables: dict[RopeSpec, RopeTable] = {}

    def get(self, spec: RopeSpec) -> RopeTable:
        """The table of a spec."""
        if spec not in self._tables:
            table = RopeTable.build(spec, self.max_positions, self.device, self.dtype)
            self._tables[spec] = table
        return self._tables[spec]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, spec: RopeSpec) -> Tensor:
    """x [R, H, d] with cos, sin of RopeTable.at: the first `dim` sizes rotated, the rest as is."""
    whole = spec.dim == x.shape[-1]
    part = x if whole else x[..., : spec.dim]
    turned = (_turn_pairs if spec.interleaved else _turn)(part, cos, sin)
    return turned if whole else torch.cat((turned, x[..., spec.dim :]), dim=-1)


def prepare_qk(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    *,
    table: RopeTable | None = None,
    angles: Angles | None = None,
    qk_bias: Tensor | None = None,
    qk_norm: tuple[Tensor, Tensor, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """q [R, H, d] and k [R, G, d] with bias [2, H, d], then norm, then rope, as `attend` says.

    A bias needs as many KV heads as query heads. positions int64 [R]. angles: what the table has
    at these positions, where the caller has it already.
    """
    if qk_bias is not None:
        q, k = q + qk_bias[0], k + qk_bias[1]
    if qk_norm is not None:
        q, k = rms_norm(q, qk_norm[0], qk_norm[2]), rms_norm(k, qk_norm[1], qk_norm[2])
    if table is not None:
        cos, sin = angles or table.at(positions)
        # Turned as one: an operator costs more than the few rows that it works on.
        turned = apply_rope(torch.cat((q, k), dim=1), cos, sin, table.spec)
        q, k = turned.split_with_sizes((q.shape[1], k.shape[1]), dim=1)
    return q, k


def inverse_frequencies(spec: RopeSpec) -> Tensor:
    """theta ** (-2 i / dim), float32 [dim / 2]."""
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.int64).float() / spec.dim
    return 1.0 / torch.pow(torch.tensor(spec.theta, dtype=torch.float32), exponents)


def _angles(spec: RopeSpec, num_positions: int) -> Tensor:
    positions = torch.arange(-(-num_positions // 64) * 64, dtype=torch.float32)
    return positions[:, None] * inverse_frequencies(spec)[None, :]


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # first * cos - second * sin and second * cos + first * sin, to the bit, in four operators
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def _turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = x.unflatten(-1, (-1, 2)).float()
    turned: Tensor = (pairs * cos + pairs.flip(-1) * sin).flatten(-2)
    return turned.to(x.dtype)
