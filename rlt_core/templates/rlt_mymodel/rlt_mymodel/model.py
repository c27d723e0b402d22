"""MyModel: embedding | pre-norm layers and a final norm, looped | head.

Shapes: R rows (token positions of any requests, at any depths), E hidden_size, H heads, d head_dim,
F intermediate_size, V vocab_size. A row's result may depend on no other row; what a row sees of
earlier positions comes through `ctx.attend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    @classmethod
    def empty(cls, config: MyModelConfig, device: torch.device, dtype: torch.dtype) -> Layer:
        """Unfilled weights; rlt fills them from the checkpoint, by `weight_table`."""
        width, inner = config.hidden_size, config.intermediate_size
        matrices = ((3 * width, width), (width, width), (2 * inner, width), (width, inner))
        sizes = (*matrices, (width,), (width,))
        return cls(*(torch.empty(size, device=device, dtype=dtype) for size in sizes))

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """The checkpoint's name of each weight, after the layer's own."""
        for name, part in zip("qkv", self.qkv.chunk(3), strict=True):
            yield f"self_attn.{name}_proj.weight", part
        gate, up = self.gate_up.chunk(2)
        yield from (("mlp.gate_proj.weight", gate), ("mlp.up_proj.weight", up))
        yield from (("self_attn.o_proj.weight", self.out), ("mlp.down_proj.weight", self.down))
        yield "input_layernorm.weight", self.attention_norm
        yield "post_attention_layernorm.weight", self.mlp_norm


class MyModel:
    """The five methods that rlt calls, and the names of the weights."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(shape.config, MyModelConfig):
            raise TypeError(f"not a shape of rlt_mymodel.config: {type(shape.config).__name__}")
        c = self.config = shape.config

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        self.embedding = empty(c.vocab_size, c.hidden_size)
        self.lm_head = empty(c.vocab_size, c.hidden_size)
        self.norm = empty(c.hidden_size)
        self.layers = [Layer.empty(c, device, dtype) for _ in range(c.num_layers)]

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """Before the loops: tokens int64 [R] -> state [R, E]."""
        return ctx.ops.embed(tokens, self.embedding)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """One pass of the looped block: [R, E] -> [R, E]."""
        for index, layer in enumerate(self.layers):
            state = self._layer(TRACK, index, layer, state, ctx)
        return ctx.ops.rms_norm(state, self.norm, self.config.norm_eps)

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
            table |= {f"model.layers.{index}.{name}": part for name, part in layer.named()}
        return table

    def ignored_weights(self) -> frozenset[str]:
        """Names that may lie in a checkpoint and are computed instead."""
        return frozenset()

    def tied_weights(self) -> Mapping[str, str]:
        """Name -> the name that it must equal where a checkpoint stores both."""
        return {}

    def _layer(
        self,
        track: str,
        index: int,
        layer: Layer,
        x: Tensor,
        ctx: LoopContext,
        *,
        store: bool = True,
    ) -> Tensor:
        """Layer `index` of a track, x [R, E] -> [R, E]; without `store` its KV stays unwritten."""
        c, ops = self.config, ctx.ops
        normed = ops.rms_norm(x, layer.attention_norm, c.norm_eps)
        heads = ops.linear(normed, layer.qkv).unflatten(1, (3, c.num_heads, c.head_dim))
        q, k, v = heads[:, 0], heads[:, 1], heads[:, 2]
        seen = ctx.attend(track, index, q, k, v, rope=c.rope, store=store)  # [R, H, d]
        mixed = ops.linear(seen.flatten(1), layer.out)
        normed, x = ops.add_rms_norm(mixed, x, layer.mlp_norm, c.norm_eps)
        return x + ops.linear(ops.linear_silu_mul(normed, layer.gate_up), layer.down)
