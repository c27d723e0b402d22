"""Faults to plant, one at a time: each changes the engine as a real mistake would.

A fault patches the engine, or returns the model to use in place of the right one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlt_core.contract.protocols import WeightedModel
from rlt_core.kv.pages import HostPages
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.runtime import emit
from rlt_core.runtime.attention_torch import TorchAttention
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.sampling import sample_full
from rlt_core.runtime.tick import TickProgram
from tests.engines import load_model

Patch = pytest.MonkeyPatch


def wrong_plane(patch: Patch) -> None:
    """Rows read the plane of the next loop."""
    right = DeviceTables.planes

    def planes(self: DeviceTables, *where: Tensor) -> tuple[Tensor, Tensor]:
        write, read = right(self, *where)
        return write, (read + 1) % self.num_planes

    patch.setattr(DeviceTables, "planes", planes)


def fill_omitted(patch: Patch) -> None:
    """An early exit leaves its deeper planes unwritten."""
    patch.setattr(TickProgram, "_fill", lambda *args: None)


def fill_one_plane_short(patch: Patch) -> None:
    """An early exit does not fill the deepest plane."""
    right = DeviceTables.exits

    def exits(self: DeviceTables, *where: Tensor) -> tuple[Tensor, Tensor]:
        source, targets = right(self, *where)
        deepest = (where[1] - 1)[:, None] == torch.arange(self.num_planes)
        return source, targets & ~deepest

    patch.setattr(DeviceTables, "exits", exits)


def depth_off_by_one(patch: Patch) -> None:
    """The exit decision counts one loop too many."""
    right = Decider.__call__

    def decide(self: Decider, batch: Any, *rest: Any) -> tuple[Tensor, Tensor]:
        return right(self, replace(batch, depth=batch.depth + 1), *rest)

    patch.setattr(Decider, "__call__", decide)


def stale_page(patch: Patch) -> None:
    """The last table change of a tick is lost: a row uses the page that was there before."""
    right = HostPages.take_changes

    def take_changes(self: HostPages) -> tuple[Any, ...]:
        changes = right(self)
        return tuple(part[:-1] for part in changes)

    patch.setattr(HostPages, "take_changes", take_changes)


def neighbours_seed(patch: Patch) -> None:
    """Each row draws with the seed of the row before it."""

    def sample(rows: Any, num_top: int) -> Any:
        return sample_full(replace(rows, seed=rows.seed.roll(1)), num_top)

    patch.setattr(emit, "sample_full", sample)


def sdpa_instead_of_chunks(patch: Patch) -> None:
    """Attention in whatever shapes the rows come: right to rounding, and not exact."""
    patch.setattr(TorchAttention, "__call__", _sdpa)


def gate_on_the_unnormed_state(patch: Patch) -> WeightedModel:
    """The gate reads what the loop's final norm gets, and not what it gives."""
    right = load_model("ouro_a")[1]
    kind: Any = type(right)

    class Unnormed(kind):  # type: ignore[misc]  # a class known at run time
        def loop(self, state: Tensor, ctx: Any) -> Tensor:
            watch = _Watch(ctx)
            normed: Tensor = super().loop(state, watch)
            self.unnormed = watch.residual
            return normed

        def signals(self, state: Tensor, *rest: Any) -> Any:
            return super().signals(self.unnormed, *rest)

    # The reference keeps the right model: the class itself is not patched.
    wrong: Any = copy.copy(right)
    wrong.__class__ = Unnormed
    return cast(WeightedModel, wrong)


Fault = Callable[[Patch], WeightedModel | None]

FAULTS: tuple[Fault, ...] = (
    wrong_plane,
    fill_omitted,
    fill_one_plane_short,
    depth_off_by_one,
    stale_page,
    neighbours_seed,
    sdpa_instead_of_chunks,
    gate_on_the_unnormed_state,
)


class _Watch:
    """A context whose `norm_add_norm` leaves the residual it made behind."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self._ops = ctx, ctx.ops
        self.residual: Tensor | None = None

    @property
    def ops(self) -> Any:
        return self

    def norm_add_norm(self, *args: Any) -> tuple[Tensor, Tensor]:
        normed, self.residual = self._ops.norm_add_norm(*args)
        assert self.residual is not None
        return normed, self.residual

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx if hasattr(type(self._ctx), name) else self._ops, name)


def _sdpa(self: TorchAttention, q: Tensor, k: Tensor, v: Tensor, rows: Any, scale: float) -> Tensor:
    if rows.store:
        for side, values in enumerate((k, v)):
            rows.pool[:, rows.unit, side].index_put_((rows.write_page, rows.write_offset), values)
    out = torch.zeros_like(q)
    for tile, pages in zip(rows.tile_rows, rows.tile_pages, strict=True):
        mine = tile[tile < len(q)]
        length = int(rows.key_len[mine].max())
        if not length:
            continue
        found = rows.pool[pages.flatten(), rows.unit]
        keys, values = (found[:, side].flatten(0, 1)[:length].transpose(0, 1) for side in (0, 1))
        seen = torch.arange(length) < rows.key_len[mine][:, None]
        answer = F.scaled_dot_product_attention(
            q[mine].transpose(0, 1)[None],
            keys[None],
            values[None],
            seen[None, None],
            scale=scale,
            enable_gqa=True,
        )
        out[mine] = answer[0].transpose(0, 1)
    return out
