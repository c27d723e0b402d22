"""Nanbeige4.2: embedding | Llama layers, then the final norm, looped | head.

With `skip_loop_final_norm` the raw state runs from loop to loop and is normed where it is read:
the head and the signals always see a normed state, whatever the depth they read at.

Shapes: R rows, E hidden_size, H query heads, G KV heads, d head_dim, F intermediate_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_nanbeige.config import TRACK, NanbeigeConfig
from rlt_nanbeige.layer import Layer, layer_table

if TYPE_CHECKING:
    from rlt_core.contract import ModelShape
    from rlt_core.contract.protocols import LoopContext


class Nanbeige:
    """The five methods of protocols.LoopedModel, and the weight table of the checkpoint."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(shape.config, NanbeigeConfig):
            raise TypeError(f"not a shape of rlt_nanbeige.config: {type(shape.config).__name__}")
        config = self.config = shape.config
        width = config.hidden_size

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        self.embedding = empty(config.vocab_size, width)
        tied = config.tie_word_embeddings
        self.lm_head = self.embedding if tied else empty(config.vocab_size, width)
        self.norm = empty(width)
        self.layers = [Layer.empty(config, device, dtype) for _ in range(config.num_layers)]

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """tokens int64 [R] -> [R, E]; not scaled."""
        return ctx.ops.embed(tokens, self.embedding)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """All layers once, then the final norm unless it is skipped: [R, E] -> [R, E]."""
        eps = self.config.rms_norm_eps
        following = [layer.before_attention for layer in self.layers[1:]] + [self.norm]
        residual = state
        normed = ctx.ops.rms_norm(state, self.layers[0].before_attention, eps)
        for index, (layer, norm_after) in enumerate(zip(self.layers, following, strict=True)):
            mixed = self._attention(index, layer, normed, ctx)
            normed, residual = ctx.ops.add_rms_norm(mixed, residual, layer.before_mlp, eps)
            out = ctx.ops.linear(_inner(normed, layer, ctx), layer.down, layer.down_bias)
            normed, residual = ctx.ops.add_rms_norm(out, residual, norm_after, eps)
        return residual if self.config.skip_loop_final_norm else normed

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """`state`: the normed state, which the head reads [R, E]."""
        return {"state": self._read_out(state, ctx)} if "state" in names else {}

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """No layer stands between the loops and the head."""
        return state

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V] of the state after any loop."""
        return ctx.ops.linear(self._read_out(state, ctx), self.lm_head).float()

    def weight_table(self) -> Mapping[str, Tensor]:
        """Checkpoint name -> the tensor, or the view of a packed one, that it fills."""
        table = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not self.config.tie_word_embeddings:
            table["lm_head.weight"] = self.lm_head
        for index, layer in enumerate(self.layers):
            for name, tensor in layer_table(layer, self.config):
                table[f"model.layers.{index}.{name}"] = tensor
        return table

    def ignored_weights(self) -> frozenset[str]:
        """None: Nanbeige's checkpoints hold nothing that is computed here."""
        return frozenset()

    def tied_weights(self) -> Mapping[str, str]:
        """The head where the configuration ties it."""
        if not self.config.tie_word_embeddings:
            return {}
        return {"lm_head.weight": "model.embed_tokens.weight"}

    def _read_out(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """The state with the final norm applied once."""
        if not self.config.skip_loop_final_norm:
            return state
        return ctx.ops.rms_norm(state, self.norm, self.config.rms_norm_eps)

    def _attention(self, index: int, layer: Layer, x: Tensor, ctx: LoopContext) -> Tensor:
        c = self.config
        heads = ctx.ops.linear(x, layer.qkv, layer.qkv_bias).unflatten(1, (-1, c.head_dim))
        q, k, v = heads.split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = (layer.q_norm, layer.k_norm, c.rms_norm_eps)
        mixed = ctx.attend(TRACK, index, q, k, v, rope=c.rope, qk_norm=norms)
        return ctx.ops.linear(mixed.flatten(1), layer.o, layer.o_bias)


def _inner(x: Tensor, layer: Layer, ctx: LoopContext) -> Tensor:
    """[R, E] -> [R, F]: both halves of the MLP's first product, multiplied."""
    if layer.gate_up_bias is None:
        return ctx.ops.linear_silu_mul(x, layer.gate_up)
    return ctx.ops.silu_mul(ctx.ops.linear(x, layer.gate_up, layer.gate_up_bias))
