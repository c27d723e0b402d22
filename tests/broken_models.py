"""Models with one fault each, for tests of the conformance kit: tiny models that break one rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.specs import ModelShape
from rlt_core.testing.checks.config import UNKNOWN
from rlt_core.testing.checks.rig import TEXT_LEN
from rlt_core.testing.tiny import example, read_config
from rlt_core.testing.tiny_model import TinyModel

SMALL = 1e-3


class NoCoda(TinyModel):
    coda = None  # type: ignore[assignment]  # the fault: no method


class NoWeights(TinyModel):
    def weight_table(self) -> Mapping[str, Tensor]:
        return {}


class NarrowPrelude(TinyModel):
    def prelude(self, tokens: Tensor, ctx: Any) -> Tensor:
        return super().prelude(tokens, ctx)[:, 1:]


class NarrowLoop(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        return super().loop(state, ctx)[:, 1:]


class NarrowCoda(TinyModel):
    def coda(self, state: Tensor, ctx: Any, *, store: bool = True) -> Tensor:
        return super().coda(state, ctx, store=store)[:, : self.config.hidden_size]


class WideLogits(TinyModel):
    def head(self, state: Tensor, ctx: Any) -> Tensor:
        return super().head(state, ctx).double()


class ExtraSignal(TinyModel):
    def signals(self, state: Tensor, *rest: Any) -> Mapping[str, Tensor]:
        return {**super().signals(state, *rest), "mood": state[:, 0]}


class AttendsTwice(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        self._layer("core", 0, self._latent(state), ctx)
        return super().loop(state, ctx)


class Counts(TinyModel):
    calls = 0

    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        self.calls += 1
        return super().loop(state, ctx) + self.calls * SMALL


class ChangesItsArgument(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        state += SMALL
        return super().loop(state, ctx)


class Promotes(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        return super().loop(state, ctx) * torch.ones(state.shape[1])


class OverlappingWeights(TinyModel):
    def weight_table(self) -> Mapping[str, Tensor]:
        return {**super().weight_table(), "head_again": self.weights["head"]}


class UnreadWeight(TinyModel):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights["spare"] = torch.zeros_like(self.weights["adapter"])


class TiedToNothing(TinyModel):
    def tied_weights(self) -> Mapping[str, str]:
        return {"lm_head": "embedding"}


class CentersTheBatch(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        return super().loop(state, ctx) - SMALL * state.mean(0)


class LooksAtTheCount(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        return super().loop(state, ctx) + SMALL * len(state)


class LooksAtTheRowNumber(TinyModel):
    def prelude(self, tokens: Tensor, ctx: Any) -> Tensor:
        state = super().prelude(tokens, ctx)
        return state + (SMALL * torch.arange(len(tokens))[:, None]).to(state.dtype)


class LooksAtTheDeepest(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        deepest: Tensor = ctx.depth.max()
        return super().loop(state, ctx) + SMALL * deepest


class ReadsBack(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        if float(state[0, 0]) == 12345.0:
            return state
        return super().loop(state, ctx)


class LoopsOverRows(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        return torch.stack([row + 0 for row in super().loop(state, ctx)])


class AlwaysStores(TinyModel):
    def coda(self, state: Tensor, ctx: Any, *, store: bool = True) -> Tensor:
        return super().coda(state, ctx)


class SeedlessStart(TinyModel):
    def _start(self, x: Tensor, ctx: Any) -> Tensor:
        super()._start(x, ctx)  # the options are read
        return torch.sin(ctx.positions[:, None] * torch.arange(1, x.shape[1] + 1)).to(x.dtype)


class DeafToOptions(TinyModel):
    def _start(self, x: Tensor, ctx: Any) -> Tensor:
        return super()._start(x, _Deaf(ctx))


class _Deaf:
    """A context that answers `state_scale` itself."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def option(self, name: str) -> Any:
        return torch.ones(len(self._ctx.positions))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class FarCount(TinyModel):
    """Looks at the row count, at positions that only whole requests reach."""

    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        far: Tensor = (ctx.positions >= TEXT_LEN)[:, None].to(state.dtype)
        return super().loop(state, ctx) + far * SMALL * len(state)


class FarMemory(TinyModel):
    """Remembers the last prelude of a position, whoever's it was."""

    def prelude(self, tokens: Tensor, ctx: Any) -> Tensor:
        state = super().prelude(tokens, ctx)
        self.memory = getattr(self, "memory", state.new_zeros(512, state.shape[1]))
        self.memory[ctx.positions] = state
        return state

    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        far = (ctx.positions >= TEXT_LEN)[:, None]
        return super().loop(state, ctx) + torch.where(far, self.memory[ctx.positions], 0) * SMALL


class NoDeeperLoops(TinyModel):
    def loop(self, state: Tensor, ctx: Any) -> Tensor:
        deep = (ctx.depth > example()["loops"])[:, None]
        return torch.where(deep, torch.nan, super().loop(state, ctx))


class NoExitAtTwo(TinyModel):
    def coda(self, state: Tensor, ctx: Any, *, store: bool = True) -> Tensor:
        two = (ctx.depth == 2)[:, None]
        return torch.where(two, torch.nan, super().coda(state, ctx, store=store))


class GateOfTheCount(TinyModel):
    """Its gate alone follows the row count; beside the state it does not."""

    def signals(
        self, state: Tensor, before: Tensor, ctx: Any, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        found = dict(super().signals(state, before, ctx, names))
        if names == {"gate"}:
            found["gate"] = found["gate"] * 0 + (9.0 if len(state) % 2 else -9.0)
        return found


def read_nothing(config: dict[str, Any], path: str, ignore: frozenset[str]) -> Any:
    """Gives no shape."""
    return dict(config)


def read_with_a_guess(config: dict[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """A field that is missing gets another value than the checkpoint's."""
    return read_config({"norm_eps": 1e-3, **config}, path, ignore)


def read_what_it_knows(config: dict[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """An unknown field is passed over."""
    return read_config({k: v for k, v in config.items() if k != UNKNOWN}, path, ignore)


def read_by_force(config: dict[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """A size of any type is made a number."""
    if "mlp_size" in config:
        config = {**config, "mlp_size": int(config["mlp_size"])}
    return read_config(config, path, ignore)


def no_dict() -> Any:
    """An example that is none."""
    return ["model_type"]
