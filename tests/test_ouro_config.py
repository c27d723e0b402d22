"""Ouro's config.json, read strictly: every field, its absence, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlt_core.contract import ModelShape
from rlt_core.contract.errors import ConfigError
from rlt_ouro.config import OuroConfig, read_config

GOLDEN = Path(__file__).parent / "golden"


def config(name: str = "ouro_a", /, **changes: Any) -> dict[str, Any]:
    """A golden config.json with changes; a value of `...` removes the field."""
    fields: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text()) | changes
    return {key: value for key, value in fields.items() if value is not ...}


def read(fields: dict[str, Any], *ignore: str) -> ModelShape:
    """The shape that the reader makes of it."""
    return read_config(fields, "here/config.json", frozenset(ignore))


def own(shape: ModelShape) -> OuroConfig:
    """Ouro's own part."""
    assert isinstance(shape.config, OuroConfig)
    return shape.config


def refused(fields: dict[str, Any], field: str) -> ConfigError:
    """The error, which must name the field."""
    with pytest.raises(ConfigError) as caught:
        read(fields)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


def test_golden_shapes() -> None:
    """ouro_a gives head_dim, ouro_b leaves it to hidden / heads and groups its heads."""
    shape = read(config())
    assert (shape.loops, shape.max_loops, shape.vocab_size, shape.state_width) == (4, 4, 160, 64)
    assert (shape.max_positions, shape.dtype, shape.eos_token_ids) == (65536, "float32", (0,))
    assert shape.exit_policy == "gate"
    assert shape.exit_defaults == {"exit_threshold": 1.0}
    track = shape.tracks[0]
    assert (track.num_layers, track.num_kv_heads, track.head_dim) == (3, 4, 16)
    assert track.per_depth
    grouped = read(config("ouro_b"))
    assert own(grouped).head_dim == 12
    assert grouped.tracks[0].num_kv_heads == 2
    assert own(grouped).rope.theta == 10000.0


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 24, "layer_types": ..., "eos_token_id": 0},
        {"num_hidden_layers": 48, "layer_types": None, "eos_token_id": [0, 2]},
    ],
)
def test_published_shapes(fields: dict[str, Any]) -> None:
    """1.4B has 24 layers and 2.6B 48, by the file and never by a card (CASES A8)."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "head_dim": 128}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 49152}
    rest: dict[str, Any] = {"torch_dtype": "bfloat16", "pad_token_id": None}
    shape = read(config(**sizes, **heads, **rest, **fields))
    assert shape.tracks[0].num_layers == fields["num_hidden_layers"]
    assert shape.dtype == "bfloat16"
    assert shape.eos_token_ids == ((0, 2) if isinstance(fields["eos_token_id"], list) else (0,))


def test_every_field_removed_in_turn() -> None:
    """A guessed default for a shape or the mathematics loads quietly (CASES A20)."""
    needed = {
        *("hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings"),
        *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps"),
        *("rope_theta", "tie_word_embeddings", "total_ut_steps", "vocab_size"),
    }
    whole = read(config())
    for field in config():
        removed: dict[str, Any] = {field: ...}
        fields = config(**removed)
        if field in needed:
            assert "missing" in str(refused(fields, field))
        elif field != "eos_token_id":
            assert read(fields) == whole
    assert read(config(eos_token_id=...)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("total_ut_steps", value) for value in (0, -1, True, 2.0, None, "4")],
        *[("hidden_size", value) for value in (0, True, "64", None)],
        *[("rms_norm_eps", value) for value in (float("nan"), float("inf"), -1e-6, True, "0")],
        *[("early_exit_threshold", value) for value in (-0.1, 1.1, float("nan"), True)],
        *[("hidden_act", value) for value in ("gelu", None, 1)],
        *[("tie_word_embeddings", value) for value in (0, None, "false")],
        *[("head_dim", value) for value in (0, 15, 16.0)],
        *[("num_key_value_heads", value) for value in (3, 8, 0)],
        *[("eos_token_id", value) for value in (160, -1, True, [0, 160], "0")],
        *[("layer_types", value) for value in (["full_attention"], ["sliding_attention"] * 3)],
        *[("torch_dtype", value) for value in ("float16", "int8")],
        ("early_exit_step", 2),
        ("rope_theta", 0.5),
    ],
)
def test_wrong_values(field: str, value: Any) -> None:
    """Wrong type (true is no number), out of range, or a switch that is not built (A6, A29)."""
    changes = {field: value}
    refused(config(**changes), field)


def test_sliding_window() -> None:
    """A window counts only where use_sliding_window is true, or where nobody says."""
    read(config(sliding_window=64, use_sliding_window=False))
    read(config(sliding_window=None, use_sliding_window=True))
    refused(config(sliding_window=64, use_sliding_window=True), "sliding_window")
    refused(config(sliding_window=64, use_sliding_window=...), "sliding_window")


def test_rope_spellings() -> None:
    """Top-level, nested, or both if equal; a conflict or absence is an error (CASES A19, A35)."""
    nested = {"rope_theta": 1e6, "rope_type": "default"}
    wanted = read(config())
    assert read(config(rope_theta=..., rope_scaling=..., rope_parameters=nested)) == wanted
    assert read(config(rope_parameters=nested)) == wanted
    for neutral in (None, {}, {"rope_type": "default"}, {"type": "default"}):
        assert read(config(rope_scaling=neutral)) == wanted
    error = refused(config(rope_parameters={"rope_theta": 1e4}), "rope_theta")
    assert "1e+06" in str(error)
    assert "10000" in str(error)
    refused(config(rope_theta=...), "rope_theta")
    for kind in ("dynamic", "yarn", "linear"):
        refused(config(rope_scaling={"rope_type": kind, "factor": 2.0}), "rope_type")


def test_unknown_fields() -> None:
    """A switch nobody read may change the mathematics; neutral values pass (CASES A20, A32)."""
    neutral: dict[str, Any] = {"a": None, "b": False, "c": ["full_attention"], "d": {}, "e": []}
    assert read(config(**neutral)) == read(config())
    for value in (True, 1, 0.5, "on", ["sliding_attention"], {"x": 1}):
        error = refused(config(loop_share_kv=value), "loop_share_kv")
        assert "--ignore-config loop_share_kv" in str(error)
        assert read(config(loop_share_kv=value), "loop_share_kv") == read(config())
    refused(config(attention_bias=True), "attention_bias")


def test_bookkeeping_is_no_matter() -> None:
    """pad absent, null or equal to eos; a foreign auto_map (CASES A18, A27)."""
    whole = read(config())
    for pad in (..., None, 0, 7):
        assert read(config(pad_token_id=pad)) == whole
    assert read(config(auto_map={"AutoModel": "peft.PeftModel"})) == whole
    assert read(config(transformers_version="5.1", _name_or_path="x", use_cache=False)) == whole


def test_dtype_spellings() -> None:
    """`dtype` replaced `torch_dtype`; both must agree, neither means float32."""
    assert read(config(torch_dtype=..., dtype="bfloat16")).dtype == "bfloat16"
    assert read(config(torch_dtype="bfloat16", dtype="bfloat16")).dtype == "bfloat16"
    assert read(config(torch_dtype=...)).dtype == "float32"
    assert read(config(torch_dtype="float16"), "torch_dtype").dtype == "float32"
    refused(config(torch_dtype="float32", dtype="bfloat16"), "dtype")


def test_threshold_of_the_checkpoint() -> None:
    """A threshold silently dropped means that nothing ever exits (CASES A9)."""
    assert read(config(early_exit_threshold=0.7)).exit_defaults == {"exit_threshold": 0.7}
    assert read(config(early_exit_threshold=1)).exit_defaults == {"exit_threshold": 1.0}


def test_reading_a_configuration_imports_no_torch() -> None:
    """`rlt explain` answers before torch is imported."""
    code = "import sys, rlt_ouro, rlt_ouro.config; raise SystemExit('torch' in sys.modules)"
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "plugins/rlt_ouro")]
    path = f"import sys; sys.path[:0] = {folders!r}; "
    assert subprocess.run([sys.executable, "-c", path + code], check=False).returncode == 0
