"""Huginn's config.json -> ModelShape. Imports no torch.

Every field that defines shapes or mathematics must be there, but for those that the authors'
configuration class works out where a file has none: `rope_base` (50000), `num_key_value_heads`
(as many as heads), `init_values.std` (sqrt(2 / (5 n_embd))) and `test_time_noise` (0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlt_core.contract import ModelShape, RopeSpec, TrackSpec
from rlt_core.contract.config import ConfigReader

PRELUDE, CORE, CODA = "prelude", "core", "coda"
STATE_TABLE = "state_table"
# Loops that an engine may be started for, in multiples of the trained mean: 128 for the published
# model. The mathematics sets no limit; planes are made for the engine's `max_depth` alone.
MOST_LOOPS = 4

# What the authors' code chooses by name and only has one of here.
_ONLY = {
    "architecture_class_name": "RecurrentGPT",
    "block_class_name": "SandwichBlock",
    "norm_class_name": "RMSNorm_llama",
    "mlp_class_name": "GatedMLP",
    "nonlin_name": "SiLU",
    "injection_type": "linear",
    "state_init": "like-init",
}
# Training alone reads these; head_dim is written by the configuration class and read by nobody.
_UNREAD = (
    *("activation_checkpoint_impl", "effective_expected_depth", "head_dim", "init_orthogonal"),
    *("init_strategy", "mean_backprop_depth", "name", "padding_multiple", "sampling_scheme"),
    "test_time_noise_type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HuginnConfig:
    """Huginn's own sizes. `start_std`: standard deviation of a start latent before it is cut."""

    vocab_size: int
    n_embd: int
    n_heads: int
    intermediate_size: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    norm_eps: float
    rope: RopeSpec
    adapter_bias: bool
    qk_bias: bool
    tie_embeddings: bool
    start_std: float

    @property
    def head_dim(self) -> int:
        """Always n_embd / n_heads, whatever a file's head_dim says."""
        return self.n_embd // self.n_heads


def read_config(config: Mapping[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """The ModelSpec reader. Raises ConfigError that names the field."""
    reader = ConfigReader(config, path, ignore)
    own = _read_sizes(reader)
    loops = reader.integer("mean_recurrence")
    _refuse_unbuilt(reader, own)
    shape = ModelShape(
        loops=loops,
        max_loops=MOST_LOOPS * loops,
        vocab_size=own.vocab_size,
        state_width=2 * own.n_embd,
        max_positions=reader.integer("block_size"),
        dtype=reader.dtype(),
        tracks=_tracks(own),
        eos_token_ids=reader.token_ids("eos_token_id", own.vocab_size),
        config=own,
        has_prelude_layers=True,
        has_coda_layers=True,
        min_leave_fraction=0.25,
        table_widths={STATE_TABLE: own.n_embd},
    )
    reader.finish()
    return shape


def _read_sizes(reader: ConfigReader) -> HuginnConfig:
    width, heads = reader.integer("n_embd"), _heads(reader)
    if width % heads or (width // heads) % 2:
        reason = f"is {width}; {heads} heads with rotary embedding need a multiple of {2 * heads}"
        raise reader.error("n_embd", reason)
    return HuginnConfig(
        vocab_size=reader.integer("vocab_size"),
        n_embd=width,
        n_heads=heads,
        intermediate_size=reader.integer("intermediate_size"),
        prelude_layers=reader.integer("n_layers_in_prelude"),
        core_layers=reader.integer("n_layers_in_recurrent_block"),
        coda_layers=reader.integer("n_layers_in_coda"),
        norm_eps=reader.number("norm_eps", minimum=0.0, maximum=1.0),
        rope=RopeSpec(
            theta=reader.number("rope_base", default=50000.0, minimum=1.0),
            dim=width // heads,
            interleaved=True,
        ),
        adapter_bias=reader.flag("bias"),
        qk_bias=reader.flag("qk_bias"),
        tie_embeddings=_tied(reader),
        start_std=_start_std(reader, width),
    )


def _heads(reader: ConfigReader) -> int:
    """`n_heads`, `num_attention_heads`, or both if equal; as many KV heads."""
    spelling = "n_heads" if "n_heads" in reader else "num_attention_heads"
    heads = reader.integer(spelling)
    for field in ("num_attention_heads", "num_key_value_heads"):
        other = reader.integer(field, default=heads)
        if other != heads:
            raise reader.error(field, f"is {other}, but {spelling} is {heads}; they must be equal")
    return heads


def _tied(reader: ConfigReader) -> bool:
    tied = reader.flag("tie_embeddings")
    if reader.flag("tie_word_embeddings", default=tied) != tied:
        raise reader.error("tie_word_embeddings", f"is {not tied}, but tie_embeddings is {tied}")
    return tied


def _start_std(reader: ConfigReader, width: int) -> float:
    """init_values.std * sqrt(n_embd), or the authors' rule, which gives sqrt(2 / 5)."""
    values = reader.raw("init_values")
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise reader.error("init_values", f"is {values!r:.60}, not an object")
    inner = ConfigReader(values, f"{reader.path} (init_values)", reader.ignore)
    std = inner.number("std", default=math.sqrt(2 / (5 * width)), minimum=0.0)
    scale = inner.number("embed_scale", default=math.sqrt(width))
    # The authors' code scales embeddings by sqrt(n_embd) whatever stands here.
    if not math.isclose(scale, math.sqrt(width), rel_tol=1e-6):
        reason = f"is {scale!r}; only sqrt(n_embd) = {math.sqrt(width):.6g} is built"
        raise inner.error("embed_scale", reason)
    for field in ("out_proj", "embedding"):
        inner.raw(field)
    inner.finish()
    return std * math.sqrt(width)


def _tracks(own: HuginnConfig) -> tuple[TrackSpec, ...]:
    """Prelude and coda keep one plane, the core one per loop."""
    layers = ((PRELUDE, own.prelude_layers), (CORE, own.core_layers), (CODA, own.coda_layers))
    return tuple(
        TrackSpec(
            name=name,
            num_layers=count,
            num_kv_heads=own.n_heads,
            head_dim=own.head_dim,
            per_depth=name == CORE,
        )
        for name, count in layers
    )


def _refuse_unbuilt(reader: ConfigReader, own: HuginnConfig) -> None:
    """Switches of the authors' code that this model does not build, and contradictions."""
    for field, only in _ONLY.items():
        reader.constant(field, only)
    # noise before the adapter of every loop
    reader.constant("test_time_noise", 0, 0.0, None, default=0)
    reader.constant("padded_vocab_size", own.vocab_size, None, default=None)
    total = own.prelude_layers + own.core_layers + own.coda_layers
    reader.constant("n_layers", total, None, default=None)
    for field in _UNREAD:
        reader.raw(field)
