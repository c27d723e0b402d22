"""One layer's weights, packed, and what a checkpoint calls their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlt_nanbeige.config import NanbeigeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """qkv [(H + 2 G) d, E], o [E, H d], gate_up [2 F, E], down [E, F], norms [E].

    Biases [out] of those four, and the norms of q and k [d], are None where the configuration
    has none.
    """

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    before_attention: Tensor
    before_mlp: Tensor
    qkv_bias: Tensor | None
    o_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None

    @classmethod
    def empty(cls, config: NanbeigeConfig, device: torch.device, dtype: torch.dtype) -> Layer:
        """Unfilled weights."""
        width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        heads_width = config.num_heads * head
        qkv_width = heads_width + 2 * config.num_kv_heads * head

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        def only(wanted: bool, size: int) -> Tensor | None:
            return empty(size) if wanted else None

        return cls(
            qkv=empty(qkv_width, width),
            o=empty(width, heads_width),
            gate_up=empty(2 * inner, width),
            down=empty(width, inner),
            before_attention=empty(width),
            before_mlp=empty(width),
            qkv_bias=only(config.attention_bias, qkv_width),
            o_bias=only(config.attention_bias, width),
            gate_up_bias=only(config.mlp_bias, 2 * inner),
            down_bias=only(config.mlp_bias, width),
            q_norm=only(config.qk_layernorm, head),
            k_norm=only(config.qk_layernorm, head),
        )


def layer_table(layer: Layer, config: NanbeigeConfig) -> Iterator[tuple[str, Tensor]]:
    """(name within the layer, the tensor or view that it fills)."""
    heads_width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    packed = (
        (("q_proj", "k_proj", "v_proj"), "self_attn", layer.qkv, layer.qkv_bias),
        (("o_proj",), "self_attn", layer.o, layer.o_bias),
        (("gate_proj", "up_proj"), "mlp", layer.gate_up, layer.gate_up_bias),
        (("down_proj",), "mlp", layer.down, layer.down_bias),
    )
    for names, part, weight, bias in packed:
        sizes = [heads_width, kv_width, kv_width] if len(names) == 3 else len(weight) // len(names)
        for kind, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                for name, view in zip(names, tensor.split(sizes), strict=True):
                    yield f"{part}.{name}.{kind}", view
    yield "input_layernorm.weight", layer.before_attention
    yield "post_attention_layernorm.weight", layer.before_mlp
    for name, norm in (("q_layernorm", layer.q_norm), ("k_layernorm", layer.k_norm)):
        if norm is not None:
            yield f"self_attn.{name}.weight", norm
