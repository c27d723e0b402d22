"""A tiny looped model for tests: its variants, configuration reader and spec. Imports no torch.

Three tracks (prelude, core, coda), an injection of the prelude's output at every loop, a gate, and
in variant "a" a start state keyed by seed and position, with an option of every kind. The layer
counts, the head size and the vocabulary are odd on purpose: a size written down somewhere else
does not fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlt_core.contract.capabilities import Word
from rlt_core.contract.config import ConfigReader
from rlt_core.contract.specs import ModelShape, ModelSpec, ParamSpec, TrackSpec

MODEL_TYPE, PLAIN_TYPE = "rlt_tiny", "rlt_tiny_plain"
NUM_BYTES = 256
VOCAB_SIZE = 259  # 256 bytes, then <pad>, <bos> and <eos>
EOS_ID = 258

OPTIONS = (
    ParamSpec(
        name="state_seed", kind="int", summary="key of the start state", default=0, minimum=0
    ),
    ParamSpec(
        name="state_scale", kind="float", summary="of the start state", default=1.0, minimum=0.0
    ),
    ParamSpec(name="state_table", kind="table", summary="start states, a row a position"),
    ParamSpec(
        name="warm_start",
        kind="flag",
        summary="generated positions start from the state of the one before",
        default=False,
        chains=True,
    ),
)
SPEC = ModelSpec(
    id="tiny",
    summary="a tiny random looped model with three tracks, for tests",
    model_types=(MODEL_TYPE,),
    architectures=("RltTinyForCausalLM",),
    reader="rlt_core.testing.tiny:read_config",
    factory="rlt_core.testing.tiny_model:TinyModel",
    provides=frozenset(
        {
            *(Word.GATE, Word.STATE, Word.LOGITS, Word.ROW_COMPACTION),
            *(Word.LOOPS_OVERRIDE, Word.KEYED_STATE, Word.GRAPH_SAFE),
        }
    ),
    options=OPTIONS,
    example="rlt_core.testing.tiny:example",
)

PLAIN_SPEC = replace(
    SPEC,
    id="tiny_plain",
    summary="a tiny random looped model that starts from zeros and has no options, for tests",
    model_types=(PLAIN_TYPE,),
    architectures=("RltTinyPlainForCausalLM",),
    provides=SPEC.provides - {Word.KEYED_STATE},
    options=(),
    example="rlt_core.testing.tiny:plain_example",
)
SPECS = {"a": SPEC, "b": PLAIN_SPEC}

_COMMON: dict[str, Any] = {
    "model_type": MODEL_TYPE,
    "architectures": ["RltTinyForCausalLM"],
    "dtype": "float32",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "mlp_size": 48,
    "norm_eps": 1e-6,
    "max_positions": 512,
    "early_exit_threshold": 0.5,
    "eos_token_id": EOS_ID,
}
# a: norms on the sum, interleaved rope, a bias on q and k, a random start state; pages of one
# layer. b: grouped heads, rope on half a head, norms on q and k; the core's planes have two parts.
# c: b with twice the layers, so that its parts are pages of two layers; the most costly to run.
_VARIANTS: dict[str, Mapping[str, Any]] = {
    "a": {
        **_COMMON,
        "prelude_layers": 1,
        "core_layers": 3,
        "coda_layers": 1,
        "loops": 5,
        "max_loops": 7,
        "heads": 3,
        "kv_heads": 3,
        "head_dim": 10,
        "rope_dim": 10,
        "rope_theta": 500.0,
        "interleaved": True,
        "qk_bias": True,
        "qk_norm": False,
        "norm_sum": True,
        "keyed_state": True,
    },
    "b": {
        **_COMMON,
        "model_type": PLAIN_TYPE,
        "architectures": ["RltTinyPlainForCausalLM"],
        "prelude_layers": 1,
        "core_layers": 2,
        "coda_layers": 1,
        "loops": 3,
        "max_loops": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "rope_dim": 8,
        "rope_theta": 10000.0,
        "interleaved": False,
        "qk_bias": False,
        "qk_norm": True,
        "norm_sum": False,
        "keyed_state": False,
    },
}
_DEEP = {"prelude_layers": 2, "core_layers": 4, "coda_layers": 2}
VARIANTS: Mapping[str, Mapping[str, Any]] = {**_VARIANTS, "c": {**_VARIANTS["b"], **_DEEP}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """What the model needs of its config.json; sizes in elements, counts in layers."""

    hidden_size: int
    mlp_size: int
    vocab_size: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_theta: float
    norm_eps: float
    interleaved: bool
    qk_bias: bool
    qk_norm: bool
    norm_sum: bool
    keyed_state: bool


def read_config(config: dict[str, Any], path: str, ignore: frozenset[str]) -> ModelShape:
    """The shape of a tiny checkpoint. Raises ConfigError for a missing or unknown field."""
    reader = ConfigReader(config, path, ignore)
    tiny = _tiny_config(reader)
    loops = reader.integer("loops")
    threshold = reader.number("early_exit_threshold", minimum=0.0, maximum=1.0)
    shape = ModelShape(
        loops=loops,
        max_loops=reader.integer("max_loops", minimum=loops),
        vocab_size=tiny.vocab_size,
        state_width=2 * tiny.hidden_size,
        max_positions=reader.integer("max_positions"),
        dtype=reader.dtype(),
        tracks=_tracks(tiny),
        eos_token_ids=reader.token_ids("eos_token_id", tiny.vocab_size),
        config=tiny,
        exit_policy="gate",
        exit_defaults={"exit_threshold": threshold},
        table_widths={"state_table": tiny.hidden_size} if tiny.keyed_state else {},
        has_prelude_layers=True,
        has_coda_layers=True,
    )
    reader.finish()
    return shape


def example() -> dict[str, Any]:
    """What the conformance kit builds: variant "a" with fewer loops."""
    return {**VARIANTS["a"], "loops": 3, "max_loops": 5}


def plain_example() -> dict[str, Any]:
    """The same of variant "b"; checks of layouts and policies run on it."""
    return dict(VARIANTS["b"])


def tiny_shape(variant: str) -> ModelShape:
    """The shape of variant "a", "b" or "c", without a folder."""
    return read_config(dict(VARIANTS[variant]), f"tiny {variant}", frozenset())


def _tiny_config(reader: ConfigReader) -> TinyConfig:
    return TinyConfig(
        hidden_size=reader.integer("hidden_size"),
        mlp_size=reader.integer("mlp_size"),
        vocab_size=reader.integer("vocab_size"),
        prelude_layers=reader.integer("prelude_layers"),
        core_layers=reader.integer("core_layers"),
        coda_layers=reader.integer("coda_layers"),
        heads=reader.integer("heads"),
        kv_heads=reader.integer("kv_heads"),
        head_dim=reader.integer("head_dim"),
        rope_dim=reader.integer("rope_dim"),
        rope_theta=reader.number("rope_theta", minimum=1.0),
        norm_eps=reader.number("norm_eps", minimum=0.0),
        interleaved=reader.flag("interleaved"),
        qk_bias=reader.flag("qk_bias"),
        qk_norm=reader.flag("qk_norm"),
        norm_sum=reader.flag("norm_sum"),
        keyed_state=reader.flag("keyed_state"),
    )


def _tracks(tiny: TinyConfig) -> tuple[TrackSpec, ...]:
    layers = (
        ("prelude", tiny.prelude_layers),
        ("core", tiny.core_layers),
        ("coda", tiny.coda_layers),
    )
    return tuple(
        TrackSpec(
            name=name,
            num_layers=count,
            num_kv_heads=tiny.kv_heads,
            head_dim=tiny.head_dim,
            per_depth=name == "core",
        )
        for name, count in layers
    )
