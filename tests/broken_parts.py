"""Layouts, policies and other parts with one fault each, for tests of the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.protocols import KVRows, StateSpec, StrategyPlan, StrategyView
from rlt_core.exits.gate import Gate
from rlt_core.kv.layouts import LastExited
from rlt_core.runtime.attention_torch import TorchAttention
from rlt_core.schedule.prompts import Chunked
from rlt_core.schedule.strategies import Refill
from tests.planted import _sdpa

Answer = tuple[Any, Mapping[str, Tensor]]


class ShortFill(LastExited):
    """Its table of fills lacks an entry."""

    def tables(self, loops: int) -> LayoutTables:
        right = super().tables(loops)
        return replace(right, decode=replace(right.decode, fill=right.decode.fill[1:]))


class NoFill(LastExited):
    """An exit leaves the deeper planes as they are."""

    def tables(self, loops: int) -> LayoutTables:
        right = super().tables(loops)
        return replace(right, decode=replace(right.decode, fill=((),) * loops))


class IdlePlane(LastExited):
    """Keeps a plane that nobody reads."""

    def tables(self, loops: int) -> LayoutTables:
        right = super().tables(loops)
        return replace(right, num_planes=loops + 1, kept=(*right.kept, loops))


class ReadsAhead(LastExited):
    """A row looks for its own position in a plane that it has not written yet."""

    def tables(self, loops: int) -> LayoutTables:
        right = super().tables(loops)
        read = (*range(1, loops), 0)
        rule = PlaneRule(write=right.prompt.write, read=read, fill=right.prompt.fill)
        return replace(right, prompt=rule, decode=rule)


class OneListForAll(LastExited):
    """Its tables of fewer loops change when those of more are asked for: they share a list."""

    def __init__(self) -> None:
        self._own: list[int] = []

    def tables(self, loops: int) -> LayoutTables:
        right = super().tables(loops)
        self._own[:] = range(loops)
        own: Any = self._own
        rule = replace(right.decode, write=own, read=own)
        return replace(right, prompt=rule, decode=rule)


class TwoStates(Gate):
    def state(self, vocab_size: int, state_width: int) -> Sequence[StateSpec]:
        return (StateSpec(name="remaining", initial=1.0),) * 2


class Numbers(Gate):
    def decide(self, *asked: Any) -> Answer:
        says, new = super().decide(*asked)
        return says.float(), new


class InPlace(Gate):
    def decide(self, signals: Any, state: Any, *rest: Any) -> Answer:
        answer = super().decide(signals, state, *rest)
        state["remaining"] *= 0.5
        return answer


class Toggles(Gate):
    calls = 0

    def decide(self, *asked: Any) -> Answer:
        self.calls += 1
        says, new = super().decide(*asked)
        return (says if self.calls % 5 else ~says), new


class LooksAtTheHost(Gate):
    def decide(self, signals: Any, *rest: Any) -> Answer:
        if float(signals["gate"][0]) == 12345.0:
            raise ValueError
        return super().decide(signals, *rest)


class BatchMean(Gate):
    def decide(self, signals: Any, *rest: Any) -> Answer:
        gate = signals["gate"]
        return super().decide({"gate": gate - gate.nanmean()}, *rest)


class FewLeave(Gate):
    """Between 2 and 6 rows all leave, a number that only engines show."""

    def decide(self, *asked: Any) -> Answer:
        says, new = super().decide(*asked)
        return says | (1 < len(says) < 7), new


class AdmitsTooMany(Refill):
    def plan(self, view: StrategyView) -> StrategyPlan:
        return replace(super().plan(view), num_admissions=view.num_waiting)


class AdmitsNobody(Refill):
    def plan(self, view: StrategyView) -> StrategyPlan:
        return replace(super().plan(view), num_admissions=0)


class IgnoresTheBudget(Chunked):
    def chunk_len(self, view: Any, budget: int, chunk_size: int) -> int:
        return super().chunk_len(view, 1_000_000, chunk_size)


class NeverStarts(Chunked):
    def chunk_len(self, view: Any, budget: int, chunk_size: int) -> int:
        return 0


def norm_with_eps_outside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A little off where a row is small."""
    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e3 * eps) * weight


def norm_in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, and its argument is lost."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    x *= scale
    return x * weight


def linear_in_any_order(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product whose order follows the row count."""
    if len(x) < 8:
        return (x[:, None].flip(2) * weight.flip(1)).sum(-1) + (0 if bias is None else bias)
    return F.linear(x, weight, bias)


class TooSharp(TorchAttention):
    def __call__(self, q: Any, k: Any, v: Any, rows: KVRows, scale: float) -> Tensor:
        return super().__call__(q, k, v, rows, 1.1 * scale)


class WritesTwice(TorchAttention):
    def __call__(self, q: Any, k: Any, v: Any, rows: KVRows, scale: float) -> Tensor:
        super().__call__(q, k, v, replace(rows, unit=0), scale)
        return super().__call__(q, k, v, rows, scale)


class Sdpa(TorchAttention):
    def __call__(self, *given: Any) -> Tensor:
        return _sdpa(self, *given)


class OnePlane(TorchAttention):
    def __call__(self, q: Any, k: Any, v: Any, rows: KVRows, scale: float) -> Tensor:
        first = rows.tile_pages[:1].expand_as(rows.tile_pages)
        return super().__call__(q, k, v, replace(rows, tile_pages=first), scale)


class Stores(TorchAttention):
    def __call__(self, q: Any, k: Any, v: Any, rows: KVRows, scale: float) -> Tensor:
        return super().__call__(q, k, v, replace(rows, store=True), scale)


class SeesHidden(TorchAttention):
    def __call__(self, q: Any, k: Any, v: Any, rows: KVRows, scale: float) -> Tensor:
        return super().__call__(q, k, v, replace(rows, hidden=None), scale)
