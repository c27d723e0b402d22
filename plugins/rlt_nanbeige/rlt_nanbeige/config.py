"""Nanbeige's config.json -> ModelShape. Imports no torch.

The authors' configuration class has a default for every field, and most are not those of the
released weights (one loop, theta 10000, hidden / heads for a head), so that a file with a gap
loads as another model. Here a field that defines shapes or mathematics must be there. The
exceptions are flags that the released file leaves out and that the loader checks all the same: a
bias or a norm of q and k is then a tensor left over, or one missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlt_core.contract import ModelShape, RopeSpec, TrackSpec
from rlt_core.contract.config import ConfigReader
from rlt_nanbeige.unbuilt import refuse_unbuilt

TRACK = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class NanbeigeConfig:
    """Nanbeige's own sizes and flags, in config.json's words where they are fields of it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    skip_loop_final_norm: bool
    qk_layernorm: bool
    attention_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool


def read_config(config: Mapping[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """The ModelSpec reader. Raises ConfigError that names the field."""
    reader = ConfigReader(config, path, ignore)
    refuse_unbuilt(reader)
    own = _read_own(reader)
    loops = _read_loops(reader)
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
    )
    reader.finish()
    return shape


def _read_own(reader: ConfigReader) -> NanbeigeConfig:
    heads, kv_heads = reader.integer("num_attention_heads"), reader.integer("num_key_value_heads")
    if heads % kv_heads:
        reason = f"is {kv_heads}, which does not divide num_attention_heads {heads}"
        raise reader.error("num_key_value_heads", reason)
    reader.constant("hidden_act", "silu")
    head_dim = _read_head_dim(reader)
    return NanbeigeConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", minimum=0.0, maximum=1.0),
        rope=RopeSpec(theta=reader.rope_theta(), dim=head_dim),
        skip_loop_final_norm=reader.flag("skip_loop_final_norm"),
        qk_layernorm=reader.flag("qk_layernorm", default=False),
        attention_bias=reader.flag("attention_bias", default=False),
        mlp_bias=reader.flag("mlp_bias", default=False),
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
    )


def _read_head_dim(reader: ConfigReader) -> int:
    """`head_dim`, or `kv_channels`: the trainer's word for the same size.

    Never hidden_size / num_attention_heads: the released heads are twice as wide. The authors'
    code reads `head_dim` alone; two different values are refused all the same, for one of the two
    was changed and the other forgotten.
    """
    given = [name for name in ("head_dim", "kv_channels") if reader.raw(name) is not None]
    sizes = {name: reader.integer(name, minimum=2) for name in given or ["head_dim"]}
    if len(set(sizes.values())) > 1:
        reason = f"is {sizes['head_dim']}, but kv_channels is {sizes['kv_channels']}"
        raise reader.error("head_dim", reason, "to go by head_dim: --ignore-config kv_channels")
    name, head_dim = next(iter(sizes.items()))
    if head_dim % 2:
        raise reader.error(name, f"is {head_dim}; rotary embedding needs an even size")
    return head_dim


def _read_loops(reader: ConfigReader) -> int:
    """`num_loops`, unless `loop_loss_weights` has one weight for each loop but the last."""
    weights = reader.sequence("loop_loss_weights", default=[])
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise reader.error("loop_loss_weights", f"holds {weight!r:.60}, not a number")
    if not weights:
        return reader.integer("num_loops")
    reader.integer("num_loops", default=1)
    return len(weights) + 1
