"""Huginn for tests: golden checkpoints, and a context without pool or batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlt_core.contract import ModelShape
from rlt_core.runtime.philox import philox4x32, split_seed
from rlt_core.runtime.weights import load_weights
from rlt_huginn.config import HuginnConfig, read_config
from rlt_huginn.model import Huginn
from tests.test_ouro_golden import DenseContext

GOLDEN = Path(__file__).parent / "golden"
MODELS = ("huginn_a", "huginn_b")
PROMPTS = ("p0", "p1", "p2")
CPU = torch.device("cpu")


def fields(name: str = "huginn_a", /, **changes: Any) -> dict[str, Any]:
    """A golden config.json with changes; a value of `...` removes the field."""
    path = GOLDEN / name / "config.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) | changes
    return {key: value for key, value in found.items() if value is not ...}


def read(found: dict[str, Any], *ignore: str) -> ModelShape:
    """The shape that the reader makes of it."""
    return read_config(found, "here/config.json", frozenset(ignore))


def own(shape: ModelShape) -> HuginnConfig:
    """Huginn's own part."""
    assert isinstance(shape.config, HuginnConfig)
    return shape.config


def unloaded(shape: ModelShape) -> Huginn:
    """The model in float32, its weights unfilled."""
    return Huginn(shape, device=CPU, dtype=torch.float32)


def build(folder: Path) -> Huginn:
    """The model of a checkpoint folder, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = unloaded(read(config))
    load_weights(model, folder)
    return model


@lru_cache(maxsize=2)
def expected(name: str) -> dict[str, Tensor]:
    """What the authors' code computes on a golden checkpoint."""
    return load_file(GOLDEN / name / "expected.safetensors")


def close(found: Tensor, wanted: Tensor) -> None:
    """1e-4 absolute, the data's own tolerance."""
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@dataclass
class StartContext(DenseContext):
    """Rows are positions 0 .. R - 1 of one request, with the options given here.

    table [R, E] or None; before [R, 2E]: the state before each row, given where known [R].
    """

    width: int = 1
    seed: int = 0
    scale: float = 1.0
    table: Tensor | None = None
    before: Tensor | None = None
    known: Tensor | None = None
    stored: list[bool] = field(default_factory=list)

    def attend(self, *args: Any, store: bool = True, **kwargs: Any) -> Tensor:
        """Notes whether the model asked to store."""
        self.stored.append(store)
        return super().attend(*args, store=store, **kwargs)

    def random_bits(self, purpose: int, count: int) -> Tensor:
        low, high = split_seed(torch.tensor([[self.seed]]))
        lane = torch.arange(-(-count // 4))[None]
        zero = torch.zeros_like(lane)
        words = philox4x32(low, high, self.positions[:, None], zero + purpose, lane, zero)
        return torch.stack(words, -1).flatten(1)[:, :count]

    def option(self, name: str) -> Tensor:
        assert name == "state_scale"
        return torch.full((len(self.positions),), self.scale)

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        assert name == "state_table"
        rows = len(self.positions)
        if self.table is None:
            return torch.zeros(rows, self.width), torch.zeros(rows, dtype=torch.bool)
        return self.table[:rows], torch.ones(rows, dtype=torch.bool)

    def previous(self) -> tuple[Tensor, Tensor]:
        rows = len(self.positions)
        if self.before is None or self.known is None:
            return torch.zeros(rows, 2 * self.width), torch.zeros(rows, dtype=torch.bool)
        return self.before, self.known


def context(model: Huginn, rows: int, **options: Any) -> StartContext:
    """A context for `rows` positions."""
    positions = torch.arange(rows)
    width = model.config.n_embd
    return StartContext(positions, torch.zeros_like(positions), width=width, **options)


def run_loops(
    model: Huginn, tokens: Tensor, loops: int, **options: Any
) -> tuple[list[Tensor], StartContext]:
    """The state before the first and after each loop, [loops + 1] x [R, 2E], and the context."""
    ctx = context(model, len(tokens), **options)
    states = [model.prelude(tokens, ctx)]
    for depth in range(1, loops + 1):
        ctx.depth = torch.full_like(tokens, depth)
        states.append(model.loop(states[-1], ctx))
    return states, ctx
