"""The floor of `rlt bench decode`: bytes that must move, counted by hand for small models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlt_core.bench.bandwidth import read_bandwidth
from rlt_core.bench.decode import DecodeResult, Point
from rlt_core.bench.spread import Spread
from rlt_core.bench.traffic import Traffic, measure_traffic
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import LastExited
from rlt_core.runtime.operators import build_operators
from rlt_ouro.config import OuroConfig
from tests.engines import Setup, load_model, plan_of


def _traffic(name: str, other: Any = None) -> Traffic:
    """Of a model by name, or of another one under its plan."""
    plan = plan_of(Setup(model=name, policy="fixed"))
    model = other or load_model(name)[1]
    kv = plan_kv(plan.shape, LastExited(), page_size=16, max_depth=plan.max_depth, element_bytes=4)
    return measure_traffic(plan, kv, model, build_operators(plan))


def test_ouro_reads_its_layers_in_a_loop_and_its_head_once() -> None:
    """Guards the floor: embedding or head counted in the loop, a packed weight counted thrice.

    ouro_b: width 48, 4 heads of 12, 2 KV heads, inner 80, 2 layers, 144 tokens, float32.
    """
    config = load_model("ouro_b")[0].config
    assert isinstance(config, OuroConfig)
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
    kv_heads, size, layers = config.num_kv_heads, config.head_dim, config.num_layers
    qkv, out = (heads + 2 * kv_heads) * size * width, width * heads * size
    layer = qkv + out + 3 * inner * width + 4 * width
    found = _traffic("ouro_b")
    assert found.loop == 4 * (layers * layer + width)
    assert found.head == 4 * config.vocab_size * width
    assert (found.prelude, found.coda) == (0, 0)
    assert (found.per_loop_kv, found.boundary_kv) == (4 * layers * 2 * kv_heads * size, 0)


def test_a_tied_head_counts_once_and_boundary_layers_once_a_token() -> None:
    """Guards models with a prelude and a coda: their layers are no part of the loop, and the
    embedding that is the head is read whole by the head alone."""
    found, (shape, model) = _traffic("huginn_b"), load_model("huginn_b")
    sizes = {name: t.numel() * 4 for name, t in model.weight_table().items()}

    def part(word: str) -> int:
        return sum(size for name, size in sizes.items() if f".{word}." in name)

    norm = sizes["transformer.ln_f.weight"]
    adapter = part("adapter")
    assert found.loop == part("core_block") + adapter
    # ln_f is read in every part but the loop: the start latent may be the normed one before.
    assert found.prelude == part("prelude") + norm
    assert found.coda == part("coda") + norm
    assert found.head == sizes["transformer.wte.weight"] + norm
    tracks = {track.name: track for track in shape.tracks}
    one = 2 * 4 * tracks["core"].num_kv_heads * tracks["core"].head_dim
    assert found.per_loop_kv == one * tracks["core"].num_layers
    assert found.boundary_kv == one * (tracks["prelude"].num_layers + tracks["coda"].num_layers)


def test_bytes_of_a_token() -> None:
    """Guards the formula: weights once whatever the rows, keys once a row and loop."""
    found = Traffic(prelude=1, loop=10, coda=2, head=5, per_loop_kv=3, boundary_kv=7)
    assert found.token_bytes(loops=4, rows=2, keys=10) == 1 + 40 + 2 + 5 + 2 * 10 * (4 * 3 + 7)


def test_floor_and_ratio() -> None:
    """Guards milliseconds against seconds, and the ratio against its inverse."""
    one = Spread.of([4.0, 3.0, 8.0])
    found = DecodeResult(
        point=Point(context=8, batch=2, new_tokens=4),
        token_ms=one,
        prompt_s=one,
        tokens_per_s=500.0,
        moved_bytes=2e9,
        bandwidth=1e12,
        host_share=0.5,
        halts=0,
        ticks=12,
    )
    assert (one.min, one.median, one.max) == (3.0, 4.0, 8.0)
    assert found.floor_ms == pytest.approx(2.0)
    assert found.ratio == pytest.approx(2.0)


class Bare:
    """One flat tensor of weights, multiplied without an operator of the plan; width 4."""

    def __init__(self) -> None:
        self.flat, self.table = torch.ones(48), torch.ones(10, 4)

    def prelude(self, tokens: torch.Tensor, ctx: Any) -> torch.Tensor:
        return self.table[tokens]

    def loop(self, state: torch.Tensor, ctx: Any) -> torch.Tensor:
        return state @ self.flat[:16].view(4, 4)

    def coda(self, state: torch.Tensor, ctx: Any) -> torch.Tensor:
        return state + self.flat.shape[0]

    def head(self, state: torch.Tensor, ctx: Any) -> torch.Tensor:
        return torch.nn.functional.linear(state, self.flat[16:].view(8, 4)) @ self.table.T[:, :8].T

    def weight_table(self) -> dict[str, torch.Tensor]:
        return {"flat": self.flat, "table": self.table}


def test_weights_read_without_an_operator_count_and_views_do_not() -> None:
    """Guards a third-party model that multiplies by itself: the stretch that is read counts, not
    the tensor that it was cut from, nor the rows that are looked up."""
    found = _traffic("ouro_b", Bare())
    assert (found.prelude, found.loop, found.coda) == (0, 4 * 16, 0)
    # A view with gaps counts from its first to its last byte, of the size that it has.
    assert found.head == 4 * 32 + 4 * 32


def test_read_bandwidth_is_of_this_device() -> None:
    """Guards the unit: bytes a second, of a buffer that is really read."""
    assert 1e8 < read_bandwidth(torch.device("cpu"), 8 << 20) < 1e13
