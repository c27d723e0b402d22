"""The start-up test of exactness: passes for the references, names what breaks its promise."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from rlt_core.contract import ModelShape, TrackSpec
from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import KVRows
from rlt_core.contract.specs import AttentionSpec, OpSpec
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.runtime import ops_torch
from rlt_core.runtime.attention_torch import TorchAttention
from rlt_core.runtime.operators import OperatorSet, build_operators
from rlt_core.runtime.self_test import self_test_exact

NAMES = [field.name for field in dataclasses.fields(OperatorSet)]


def plan(dtype: str = "float32", exact: bool = True) -> Plan:
    """As much of a plan as the operators need."""
    ops = {
        name: OpSpec(
            id=f"torch.{name}",
            op=name,
            factory=f"rlt_core.runtime.ops_torch:{name}",
            devices=("cpu",),
            dtypes=("float32", "bfloat16"),
            exact=exact,
        )
        for name in NAMES
    }
    attention = AttentionSpec(
        id="torch",
        summary="",
        factory="rlt_core.runtime.attention_torch:TorchAttention",
        devices=("cpu",),
        dtypes=("float32", "bfloat16"),
        provides=frozenset({Word.EXACT} if exact else ()),
    )
    track = TrackSpec(name="core", num_layers=2, num_kv_heads=2, head_dim=16, per_depth=True)
    shape = ModelShape(
        loops=2,
        max_loops=2,
        vocab_size=50,
        state_width=100,
        max_positions=64,
        dtype=dtype,
        tracks=(track,),
        eos_token_ids=(),
        config=None,
    )
    unused: Any = None
    return Plan(
        choice=Choice(page_size=16),
        model=unused,
        shape=shape,
        layout=unused,
        policy=unused,
        exit_mode="skip",
        strategy=unused,
        prompts=unused,
        attention=attention,
        ops=ops,
        device="cpu",
        dtype=dtype,
        max_depth=2,
    )


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Not exact: a row's bits change with the row count."""
    return torch.nn.functional.linear(x, weight, bias)


def crowded_silu_mul(gate_up: Tensor) -> Tensor:
    """Not exact: the number of rows leaks into every row, on any CPU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate * (1 + 1e-6 * len(gate))) * up


def plain_attention(q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
    """Not exact: the number of rows in the launch leaks into every row."""
    return TorchAttention()(q, k, v, rows, scale * (1 + 1e-6 * len(q)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_references_pass(dtype: str) -> None:
    """What the core declares exact is exact here."""
    chosen = plan(dtype)
    operators = build_operators(chosen)
    assert operators.linear is ops_torch.linear
    self_test_exact(chosen, operators, TorchAttention())


@pytest.mark.parametrize(
    ("name", "broken"), [("linear", plain_linear), ("silu_mul", crowded_silu_mul)]
)
def test_broken_operator_is_named(name: str, broken: object) -> None:
    """A false promise stops the start and says whose it is."""
    changes: dict[str, Any] = {name: broken}
    operators = dataclasses.replace(build_operators(plan()), **changes)
    with pytest.raises(PluginError, match=rf"torch\.{name}: claims exact") as caught:
        self_test_exact(plan(), operators, TorchAttention())
    assert "--exact off" in str(caught.value)
    self_test_exact(plan(exact=False), operators, TorchAttention())


def test_broken_attention_is_named() -> None:
    """SDPA in place of chunks would be caught before the first request."""
    with pytest.raises(PluginError, match="attention backend torch: claims exact"):
        self_test_exact(plan(), build_operators(plan()), plain_attention)
