"""Ouro's config.json -> ModelShape. Imports no torch.

Every field that defines shapes or mathematics must be there, but for two with a documented rule:
`head_dim` (absent: hidden_size / num_attention_heads, as the authors' code does) and
`early_exit_threshold` (absent: 1.0, no early exit).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlt_core.contract import ModelShape, RopeSpec, TrackSpec
from rlt_core.contract.config import ConfigReader

TRACK = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class OuroConfig:
    """Ouro's own sizes, in config.json's words where they are fields of it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool


def read_config(config: Mapping[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """The ModelSpec reader. Raises ConfigError that names the field."""
    reader = ConfigReader(config, path, ignore)
    own = _read_sizes(reader)
    loops = reader.integer("total_ut_steps")
    threshold = reader.number("early_exit_threshold", default=1.0, minimum=0.0, maximum=1.0)
    _refuse_unbuilt(reader, own.num_layers)
    shape = ModelShape(
        loops=loops,
        max_loops=loops,
        vocab_size=own.vocab_size,
        state_width=own.hidden_size,
        max_positions=reader.integer("max_position_embeddings"),
        dtype=reader.dtype(),
        tracks=(
            TrackSpec(
                name=TRACK,
                num_layers=own.num_layers,
                num_kv_heads=own.num_kv_heads,
                head_dim=own.head_dim,
                per_depth=True,
            ),
        ),
        eos_token_ids=reader.token_ids("eos_token_id", own.vocab_size),
        config=own,
        exit_policy="gate",
        exit_defaults={"exit_threshold": threshold},
    )
    reader.finish()
    return shape


def example() -> dict[str, Any]:
    """A small Ouro's config.json, for checks with random weights."""
    return {
        "model_type": "ouro",
        "architectures": ["OuroForCausalLM"],
        "dtype": "float32",
        "vocab_size": 259,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "total_ut_steps": 4,
        "early_exit_threshold": 1.0,
        "eos_token_id": 0,
    }


def _read_sizes(reader: ConfigReader) -> OuroConfig:
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads")
    if heads % kv_heads:
        reason = f"is {kv_heads}, which does not divide num_attention_heads {heads}"
        raise reader.error("num_key_value_heads", reason)
    head_dim = _head_dim(reader, hidden, heads)
    return OuroConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", minimum=0.0, maximum=1.0),
        rope=RopeSpec(theta=reader.rope_theta(), dim=head_dim),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
    )


def _head_dim(reader: ConfigReader, hidden: int, heads: int) -> int:
    if reader.raw("head_dim") is None and hidden % heads:
        reason = f"is missing, and hidden_size {hidden} is no multiple of {heads} heads"
        raise reader.error("head_dim", reason)
    head_dim = reader.integer("head_dim", default=hidden // heads, minimum=2)
    if head_dim % 2:
        raise reader.error("head_dim", f"is {head_dim}; rotary embedding needs an even size")
    return head_dim


def _refuse_unbuilt(reader: ConfigReader, num_layers: int) -> None:
    """Switches of the authors' code that this model does not build."""
    reader.constant("hidden_act", "silu")
    # pins the read-out to one loop, whatever the gate says
    reader.constant("early_exit_step", None, default=None)
    if reader.flag("use_sliding_window", default=reader.raw("sliding_window") is not None):
        reader.constant("sliding_window", None, default=None)
    layer_types = reader.sequence("layer_types", default=["full_attention"] * num_layers)
    if layer_types != ["full_attention"] * num_layers:
        reason = f"is {layer_types!r:.60}; only {num_layers} times full_attention is built"
        raise reader.error("layer_types", reason)
