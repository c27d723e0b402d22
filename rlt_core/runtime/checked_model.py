"""A model as a plugin gave it, held to the contract's shapes: a slip becomes a sentence.

Only shapes, dtypes and names are looked at, on the host: nothing is read from the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import LoopContext, LoopedModel
from rlt_core.plugins.plan import Plan

METHODS = ("prelude", "loop", "signals", "coda", "head")


class CheckedModel:
    """The five methods of `model`; PluginError names its class where a result does not fit."""

    def __init__(self, model: LoopedModel, plan: Plan) -> None:
        self._model, self._name = model, f"{type(model).__module__}.{type(model).__qualname__}"
        self._width, self._vocab = plan.shape.state_width, plan.shape.vocab_size
        self._dtype, self._model_id = getattr(torch, plan.dtype), plan.model.id
        missing = [name for name in METHODS if not callable(getattr(model, name, None))]
        if missing:
            raise self._error(f"has no method {', '.join(missing)}")

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """state [R, W]."""
        return self._state("prelude", self._model.prelude(tokens, ctx), tokens.shape[0])

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """state [R, W]."""
        return self._state("loop", self._model.loop(state, ctx), state.shape[0])

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """Every signal asked for, a row each."""
        found = self._model.signals(state, before, ctx, names)
        if not isinstance(found, Mapping):
            raise self._error(f"signals returned {type(found).__name__}, not a dict")
        # "".join: a Word's own value
        lacking = sorted("".join(name) for name in names if name not in found)
        if lacking:
            gave = ", ".join(sorted(found)) or "none"
            raise self._error(f"declares the signal {', '.join(lacking)}; signals gave {gave}")
        for name in names:
            self._rows(f"signal {''.join(name)}", found[name], state.shape[0])
        return found

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """state [R, W]."""
        return self._state("coda", self._model.coda(state, ctx, store=store), state.shape[0])

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V]."""
        logits: Any = self._model.head(state, ctx)
        wanted = (state.shape[0], self._vocab)
        if not isinstance(logits, Tensor) or (tuple(logits.shape), logits.dtype) != (
            wanted,
            torch.float32,
        ):
            raise self._error(f"head returned {_told(logits)}, not float32 {list(wanted)}")
        return logits

    def _state(self, method: str, state: Any, rows: int) -> Tensor:
        wanted = (rows, self._width)
        if not isinstance(state, Tensor) or (tuple(state.shape), state.dtype) != (
            wanted,
            self._dtype,
        ):
            kind = str(self._dtype).removeprefix("torch.")
            raise self._error(f"{method} returned {_told(state)}, not {kind} {list(wanted)}")
        return state

    def _rows(self, what: str, value: Any, rows: int) -> None:
        if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != rows:
            raise self._error(f"{what} is {_told(value)}, not a tensor of {rows} rows")

    def _error(self, reason: str) -> PluginError:
        return PluginError(self._model_id, f"{self._name} {reason}", _FIX)


_FIX = "Fix: rlt check, with the plugin's name, says more"


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
