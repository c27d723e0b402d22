"""config.json of MyModel -> ModelShape. Imports no torch.

A field that the mathematics needs has no default, and one that nobody reads is refused: a guessed
or an overlooked field loads quietly and gives another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlt_core.contract import ModelShape, RopeSpec, TrackSpec
from rlt_core.contract.config import ConfigReader

# The name of the group of layers that keeps KV.
TRACK = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class MyModelConfig:
    """What the model itself needs; rlt hands it through unread."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec


def read_config(config: Mapping[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """The shape of a checkpoint. Raises ConfigError that names the field."""
    reader = ConfigReader(config, path, ignore)
    own = _read_sizes(reader)
    loops = reader.integer("num_loops")
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
                num_kv_heads=own.num_heads,
                head_dim=own.head_dim,
                per_depth=True,
            ),
        ),
        eos_token_ids=reader.token_ids("eos_token_id", own.vocab_size),
        config=own,
    )
    reader.finish()
    return shape


def _read_sizes(reader: ConfigReader) -> MyModelConfig:
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if hidden % (2 * heads):
        raise reader.error("hidden_size", f"is {hidden}, no multiple of 2 x {heads} heads")
    return MyModelConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        head_dim=hidden // heads,
        norm_eps=reader.number("rms_norm_eps", minimum=0.0),
        rope=RopeSpec(theta=reader.rope_theta(), dim=hidden // heads),
    )
