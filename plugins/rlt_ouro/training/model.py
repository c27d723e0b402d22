"""The trainer's own Ouro: float32, all loops at every position, no cache unless one is handed in.

Parameter names are the checkpoint's names, so a state dict is a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from training.tokenizer import EOS_ID, VOCABULARY

KeyValue = tuple[Tensor, Tensor]


def demo_config() -> dict[str, Any]:
    """config.json of the demo model, with the keys that the published checkpoints have."""
    layers = 2
    return {
        "architectures": ["OuroForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": EOS_ID,
        "early_exit_threshold": 0.3,
        "eos_token_id": EOS_ID,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 384,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": 512,
        "max_window_layers": layers,
        "model_type": "ouro",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "total_ut_steps": 4,
        "transformers_version": "4.55.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(VOCABULARY),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """What every loop says: `logits` [loops, batch, tokens, vocabulary], `gate_logits` without
    the last dimension; both float32."""

    logits: Tensor
    gate_logits: Tensor


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.grouped = heads != kv_heads
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

    def forward(
        self, x: Tensor, rope: KeyValue, mask: Tensor | None, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, rope), rotate(k, rope)
        own = k, v
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        causal = mask is None and past is None
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=self.grouped
        )
        joined: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return joined, own

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    """One norm before each sublayer and one on its output, before it joins the stream."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.input_layernorm_2 = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm_2 = RMSNorm(hidden, eps)

    def forward(
        self, h: Tensor, rope: KeyValue, mask: Tensor | None, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        mixed, own = self.self_attn(self.input_layernorm(h), rope, mask, past)
        h = h + self.input_layernorm_2(mixed)
        return h + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(h))), own


class Body(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(hidden, config["rms_norm_eps"])
        self.early_exit_gate = nn.Linear(hidden, 1)


class Ouro(nn.Module):
    """A stack of layers applied `loops` times, with the head and the gate readable after each."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = Body(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self.loops: int = config["total_ut_steps"]
        self.head_dim: int = config["head_dim"]
        self.rope_theta: float = config["rope_theta"]

    def forward(self, tokens: Tensor) -> Readout:
        """Read every loop of a causal pass over `tokens` (int64 [batch, tokens])."""
        return self.read(torch.stack(self.states(tokens)))

    def read(self, states: Tensor) -> Readout:
        """Logits and gate logits of normed states [..., hidden]."""
        gate_logits = self.model.early_exit_gate(states).squeeze(-1)
        return Readout(logits=self.lm_head(states), gate_logits=gate_logits)

    def states(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Normed state [batch, tokens, hidden] after each loop.

        `positions` int64 [batch, tokens], counted from 0 when left out; `mask` bool
        [batch, 1, tokens, tokens], causal when left out.
        """
        h, rope = self.enter(tokens, positions)
        states = []
        for _ in range(self.loops):
            h, _own = self.loop(h, rope, mask)
            states.append(h)
        return states

    def enter(self, tokens: Tensor, positions: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        """State before the first loop, and the rotation of its positions."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return self.model.embed_tokens(tokens), rotation(positions, self.head_dim, self.rope_theta)

    def loop(
        self,
        h: Tensor,
        rope: KeyValue,
        mask: Tensor | None = None,
        past: list[KeyValue] | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """One loop: the normed state and each layer's new keys and values.

        `past` holds each layer's earlier keys and values of this loop's plane; with it every
        row reads all of them.
        """
        planes = []
        for number, layer in enumerate(self.model.layers):
            h, own = layer(h, rope, mask, None if past is None else past[number])
            planes.append(own)
        return self.model.norm(h), planes


def rotation(positions: Tensor, head_dim: int, theta: float) -> KeyValue:
    """Cosine and sine [batch, 1, tokens, head_dim / 2] of rotary positions."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions[:, None, :, None].float() * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: KeyValue) -> Tensor:
    """Rotary embedding of [batch, heads, tokens, head_dim]; pairs are (i, i + head_dim / 2)."""
    (cos, sin), (a, b) = rope, x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def build_model(config: Mapping[str, Any]) -> Ouro:
    """A freshly initialised model of a config.json's shape, from torch's global generator.

    Sublayers start quiet beside the embedding (norm weights 0.1): with 1.0 the words drown, and
    chains are learnt half as fast.
    """
    model = Ouro(config)
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            nn.init.normal_(parameter, std=1.0)
        elif "early_exit_gate" in name:
            nn.init.zeros_(parameter)
        elif "layernorm_2" in name:
            nn.init.constant_(parameter, 0.1)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model


def load_model(folder: Path) -> Ouro:
    """The model of a checkpoint folder (config.json, model.safetensors), ready to evaluate."""
    model = build_model(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()
