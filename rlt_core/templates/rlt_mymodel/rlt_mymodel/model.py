"""MyModel: embedding | pre-norm layers and a final norm, looped | head.

Shapes: R rows (token positions of any requests, at any depths), E hidden_size, H heads, d head_dim,
F intermediate_size, V vocab_size. A row's result may depend on no other row; what a row sees of
earlier positions comes through `ctx.attend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_mymodel.config import TRACK, MyModelConfig

if TYPE_CHECKING:
    from rlt_core.contract import ModelShape
    from rlt_core.contract.protocols import LoopContext


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; q, k, v and gate, up are packed, so that each is one product."""

    qkv: Tensor  # [3 E, E]
    out: Tensor  # [E, E]
    gate_up: Tensor  # [2 F, E]
    down: Tensor  # [E, F]
    attention_norm: Tensor  # [E]
    mlp_norm: Tensor  # [E]


class MyModel:
    """The five methods that rlt calls, and the names of the weights."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(shape.config, MyModelConfig):
            raise TypeError(f"not a shape of rlt_mymodel.config: {type(shape.config).__name__}")
        c = self.config = shape.config

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        width, inner = c.hidden_size, c.intermediate_size
        self.embedding, self.lm_head = empty(c.vocab_size, width), empty(c.vocab_size, width)
        self.norm = empty(width)
        self.layers = [
            Layer(
                qkv=empty(3 * width, width),
                out=empty(width, width),
                gate_up=empty(2 * inner, width),
                down=empty(width, inner),
                attention_norm=empty(width),
                mlp_norm=empty(width),
            )
            for _ in range(c.num_layers)
        ]

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """Before the loops: tokens int64 [R] -> state [R, E]."""
        return ctx.ops.embed(tokens, self.embedding)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """One pass of the looped block: [R, E] -> [R, E]."""
        ops, eps = ctx.ops, self.config.norm_eps
        for index, layer in enumerate(self.layers):
            normed = ops.rms_norm(state, layer.attention_norm, eps)
            mixed = self._attention(index, layer, normed, ctx)
            normed, state = ops.add_rms_norm(mixed, state, layer.mlp_norm, eps)
            state = state + ops.linear(ops.silu_mul(ops.linear(normed, layer.gate_up)), layer.down)
        return ops.rms_norm(state, self.norm, eps)

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """What exit policies may look at after a loop; `before` is the state before it."""
        return {"state": state} if "state" in names else {}

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """After the loops: layers that keep KV of their own. Here there are none."""
        return state

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V]."""
        return ctx.ops.linear(state, self.lm_head).float()

    def weight_table(self) -> Mapping[str, Tensor]:
        """Name in a checkpoint -> the tensor, or the part of a packed one, that it fills."""
        table = {
            "model.embed_tokens.weight": self.embedding,
            "model.norm.weight": self.norm,
            "lm_head.weight": self.lm_head,
        }
        for index, layer in enumerate(self.layers):
            q, k, v = layer.qkv.chunk(3)
            gate, up = layer.gate_up.chunk(2)
            named = {
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": layer.out,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down,
                "input_layernorm": layer.attention_norm,
                "post_attention_layernorm": layer.mlp_norm,
            }
            table |= {f"model.layers.{index}.{name}.weight": t for name, t in named.items()}
        return table

    def ignored_weights(self) -> frozenset[str]:
        """Names that may lie in a checkpoint and are computed instead."""
        return frozenset()

    def tied_weights(self) -> Mapping[str, str]:
        """Name -> the name that it must equal where a checkpoint stores both."""
        return {}

    def _attention(self, index: int, layer: Layer, x: Tensor, ctx: LoopContext) -> Tensor:
        c = self.config
        heads = ctx.ops.linear(x, layer.qkv).unflatten(1, (3, c.num_heads, c.head_dim))
        q, k, v = heads[:, 0], heads[:, 1], heads[:, 2]
        seen = ctx.attend(TRACK, index, q, k, v, rope=c.rope)  # [R, H, d]
        return ctx.ops.linear(seen.flatten(1), layer.out)
