"""Ouro: embedding | layers with a norm before and after each sublayer, then the final norm,
looped | head. The normed state of a loop is what the next loop, the gate and the head read.

Shapes: R rows, E hidden_size, H query heads, G KV heads, d head_dim, F intermediate_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_ouro.config import TRACK, OuroConfig

if TYPE_CHECKING:
    from rlt_core.contract import ModelShape
    from rlt_core.contract.protocols import LoopContext


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights: qkv [(H + 2 G) d, E], o [E, H d], gate_up [2 F, E], down [E, F]."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    before_attention: Tensor
    after_attention: Tensor
    before_mlp: Tensor
    after_mlp: Tensor

    @classmethod
    def empty(cls, config: OuroConfig, device: torch.device, dtype: torch.dtype) -> Layer:
        """Unfilled weights."""
        width, inner = config.hidden_size, config.intermediate_size
        heads_width = config.num_heads * config.head_dim
        qkv_width = heads_width + 2 * config.num_kv_heads * config.head_dim
        shapes = ((qkv_width, width), (width, heads_width), (2 * inner, width), (width, inner))
        return cls(
            *(torch.empty(s, device=device, dtype=dtype) for s in (*shapes, *[(width,)] * 4))
        )


class Ouro:
    """The five methods of protocols.LoopedModel, and the weight table of the checkpoint."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(shape.config, OuroConfig):
            raise TypeError(f"not a shape of rlt_ouro.config: {type(shape.config).__name__}")
        config = self.config = shape.config
        width = config.hidden_size

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        self.embedding = empty(config.vocab_size, width)
        tied = config.tie_word_embeddings
        self.lm_head = self.embedding if tied else empty(config.vocab_size, width)
        self.norm = empty(width)
        self.gate_weight, self.gate_bias = empty(1, width), empty(1)
        self.layers = [Layer.empty(config, device, dtype) for _ in range(config.num_layers)]

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """tokens int64 [R] -> [R, E]; not scaled."""
        return ctx.ops.embed(tokens, self.embedding)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """All layers once, then the final norm: [R, E] -> [R, E]."""
        eps = self.config.rms_norm_eps
        following = [layer.before_attention for layer in self.layers[1:]] + [self.norm]
        residual = state
        normed = ctx.ops.rms_norm(state, self.layers[0].before_attention, eps)
        for index, (layer, norm_after) in enumerate(zip(self.layers, following, strict=True)):
            mixed = self._attention(index, layer, normed, ctx)
            normed, residual = ctx.ops.norm_add_norm(
                mixed, residual, layer.after_attention, layer.before_mlp, eps
            )
            inner = ctx.ops.linear_silu_mul(normed, layer.gate_up)
            normed, residual = ctx.ops.norm_add_norm(
                ctx.ops.linear(inner, layer.down), residual, layer.after_mlp, norm_after, eps
            )
        return normed

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """`gate`: the raw logit, float32 [R]; `state`: the normed state [R, E]."""
        found = {"state": state} if "state" in names else {}
        if "gate" in names:
            logit = ctx.ops.linear(state, self.gate_weight, self.gate_bias)
            found["gate"] = logit.squeeze(1).float()
        return found

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """Nothing stands between the loops and the head."""
        return state

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V]; the state is normed already."""
        return ctx.ops.linear(state, self.lm_head).float()

    def weight_table(self) -> Mapping[str, Tensor]:
        """Checkpoint name -> the tensor, or the view of a packed one, that it fills."""
        table = {
            "model.embed_tokens.weight": self.embedding,
            "model.norm.weight": self.norm,
            "model.early_exit_gate.weight": self.gate_weight,
            "model.early_exit_gate.bias": self.gate_bias,
        }
        if not self.config.tie_word_embeddings:
            table["lm_head.weight"] = self.lm_head
        for index, layer in enumerate(self.layers):
            for name, tensor in self._layer_table(layer):
                table[f"model.layers.{index}.{name}.weight"] = tensor
        return table

    def ignored_weights(self) -> frozenset[str]:
        """None: Ouro's checkpoints hold nothing that is computed here."""
        return frozenset()

    def tied_weights(self) -> Mapping[str, str]:
        """The head where the configuration ties it."""
        if not self.config.tie_word_embeddings:
            return {}
        return {"lm_head.weight": "model.embed_tokens.weight"}

    def _attention(self, index: int, layer: Layer, x: Tensor, ctx: LoopContext) -> Tensor:
        c = self.config
        heads = ctx.ops.linear(x, layer.qkv).unflatten(1, (-1, c.head_dim))
        q, k, v = heads.split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
        return ctx.ops.linear(ctx.attend(TRACK, index, q, k, v, rope=c.rope).flatten(1), layer.o)

    def _layer_table(self, layer: Layer) -> Iterator[tuple[str, Tensor]]:
        c = self.config
        kv_width = c.num_kv_heads * c.head_dim
        q, k, v = layer.qkv.split((c.num_heads * c.head_dim, kv_width, kv_width))
        gate, up = layer.gate_up.chunk(2)
        yield from (("self_attn.q_proj", q), ("self_attn.k_proj", k), ("self_attn.v_proj", v))
        yield from (("self_attn.o_proj", layer.o), ("mlp.down_proj", layer.down))
        yield from (("mlp.gate_proj", gate), ("mlp.up_proj", up))
        yield "input_layernorm", layer.before_attention
        yield "input_layernorm_2", layer.after_attention
        yield "post_attention_layernorm", layer.before_mlp
        yield "post_attention_layernorm_2", layer.after_mlp
