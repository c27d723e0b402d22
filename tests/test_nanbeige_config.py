"""Nanbeige's config.json, read strictly: every field, its absence, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlt_core.contract import ModelShape
from rlt_core.contract.errors import ConfigError
from rlt_nanbeige.config import NanbeigeConfig, read_config
from rlt_nanbeige.example import small_config
from rlt_nanbeige.unbuilt import UNBUILT, UNREAD

GOLDEN = Path(__file__).parent / "golden"


def config(name: str = "nanbeige_a", /, **changes: Any) -> dict[str, Any]:
    """A golden config.json with changes; a value of `...` removes the field."""
    fields: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text()) | changes
    return {key: value for key, value in fields.items() if value is not ...}


def read(fields: dict[str, Any], *ignore: str) -> ModelShape:
    """The shape that the reader makes of it."""
    return read_config(fields, "here/config.json", frozenset(ignore))


def own(shape: ModelShape) -> NanbeigeConfig:
    """Nanbeige's own part."""
    assert isinstance(shape.config, NanbeigeConfig)
    return shape.config


def refused(fields: dict[str, Any], field: str) -> ConfigError:
    """The error, which must name the file and the field."""
    with pytest.raises(ConfigError) as caught:
        read(fields)
    assert caught.value.field == field
    assert f"'{field}'" in str(caught.value)
    assert caught.value.path.startswith("here/config.json")
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


def test_golden_shapes() -> None:
    """Loops, heads and flags of the three golden files, which switch on what the code has."""
    shape = read(config())
    assert (shape.loops, shape.max_loops, shape.vocab_size, shape.state_width) == (2, 2, 160, 64)
    assert (shape.max_positions, shape.dtype, shape.eos_token_ids) == (262144, "float32", (159,))
    assert (shape.exit_policy, shape.exit_defaults) == ("fixed", {})
    track = shape.tracks[0]
    assert (track.num_layers, track.num_kv_heads, track.head_dim) == (3, 2, 32)
    assert track.per_depth
    assert own(shape).rope.theta == 7e7
    assert read(config("nanbeige_b")).loops == 3
    rich = read(config("nanbeige_c"))
    assert rich.loops == 3  # by loop_loss_weights; num_loops says 2
    flags = ("skip_loop_final_norm", "qk_layernorm", "attention_bias", "mlp_bias")
    for flag in (*flags, "tie_word_embeddings"):
        assert getattr(own(rich), flag), flag
        assert not getattr(own(shape), flag), flag


def test_the_published_shape() -> None:
    """Nanbeige4.2-3B: heads twice as wide as hidden / heads, and no key for the norm of q and k."""
    sizes = {"hidden_size": 3072, "intermediate_size": 10752, "num_hidden_layers": 22}
    heads = {"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128}
    ids = {"vocab_size": 166144, "bos_token_id": 166100, "eos_token_id": 166101}
    rest: dict[str, Any] = {"kv_channels": 128, "mlp_bias": ..., "torch_dtype": "bfloat16"}
    shape = read(config(**sizes, **heads, **ids, **rest))
    assert (shape.loops, shape.dtype, shape.eos_token_ids) == (2, "bfloat16", (166101,))
    track = shape.tracks[0]
    # 176 KiB of KV a token: two planes of 22 layers, keys and values, 2 bytes each
    elements = shape.loops * track.num_layers * 2 * track.num_kv_heads * track.head_dim
    assert elements * 2 == 180_224


def test_every_field_removed_in_turn() -> None:
    """A guessed default for a shape or the mathematics loads quietly (CASES A20, A31)."""
    needed = {
        *("hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings"),
        *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps"),
        *("rope_theta", "skip_loop_final_norm", "tie_word_embeddings", "num_loops", "vocab_size"),
    }
    whole = read(config())
    for field in config():
        removed: dict[str, Any] = {field: ...}
        if field in needed:
            assert "missing" in str(refused(config(**removed), field))
        elif field != "eos_token_id":
            assert read(config(**removed)) == whole
    assert read(config(eos_token_id=...)).eos_token_ids == ()


def test_head_dim_is_read_and_never_guessed() -> None:
    """hidden / heads is half of the released size; kv_channels is the same size (CASES A30)."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4}
    for given in ({"kv_channels": ...}, {"kv_channels": None}, {"kv_channels": 16}):
        changes: dict[str, Any] = {**sizes, "head_dim": 16, **given}
        assert own(read(config(**changes))).head_dim == 16
    for missing in (..., None):
        changes = {**sizes, "head_dim": missing, "kv_channels": 16}
        shape = read(config(**changes))
        assert (own(shape).head_dim, own(shape).rope.dim, shape.tracks[0].head_dim) == (16, 16, 16)
    changes = {**sizes, "head_dim": ..., "kv_channels": ...}
    assert "missing" in str(refused(config(**changes), "head_dim"))
    changes = {"head_dim": 16, "kv_channels": 32}
    assert "--ignore-config kv_channels" in str(refused(config(**changes), "head_dim"))
    assert own(read(config(**changes), "kv_channels")).head_dim == 16
    changes = {"head_dim": ..., "kv_channels": 15}
    refused(config(**changes), "kv_channels")


_NONE: list[float] = []


@pytest.mark.parametrize(
    ("num_loops", "weights", "loops"),
    [
        *[(2, absent, 2) for absent in (_NONE, None, ...)],
        *[(given, [0.5], 2) for given in (1, 7, None, ...)],
        (1, [0.3, 0.2, 0.1], 4),
        (1, _NONE, 1),
    ],
)
def test_loops(num_loops: Any, weights: Any, loops: int) -> None:
    """Loop weights, where there are any, say the loops; one pass is never assumed (CASES A31)."""
    changes = {"num_loops": num_loops, "loop_loss_weights": weights}
    shape = read(config(**changes))
    assert (shape.loops, shape.max_loops) == (loops, loops)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("num_loops", value) for value in (0, -1, True, 2.0, None, "2")],
        *[("loop_loss_weights", value) for value in (0.5, ["0.5"], [True], [None], {"a": 1})],
        *[("hidden_size", value) for value in (0, True, "64", None)],
        *[("rms_norm_eps", value) for value in (float("nan"), float("inf"), -1e-6, True, "0")],
        *[("hidden_act", value) for value in ("gelu", None, 1)],
        *[("skip_loop_final_norm", value) for value in (0, None, "false")],
        *[("qk_layernorm", value) for value in (1, "false")],
        *[("attention_bias", value) for value in (1, "qkv")],
        *[("mlp_bias", value) for value in (1, "false")],
        *[("tie_word_embeddings", value) for value in (0, None, "false")],
        *[("head_dim", value) for value in (0, 15, 16.0, True)],
        *[("kv_channels", value) for value in (0, 32.0, True)],
        *[("num_key_value_heads", value) for value in (3, 8, 0, None)],
        *[("eos_token_id", value) for value in (160, -1, True, [0, 160], "0")],
        *[("torch_dtype", value) for value in ("float16", "int8")],
        ("rope_theta", 0.5),
    ],
)
def test_wrong_values(field: str, value: Any) -> None:
    """Wrong type (true is no number) or out of range."""
    changes = {field: value}
    refused(config(**changes), field)


# A value of each kind that an option of the authors' code has when it is on.
_ON: dict[str, list[Any]] = {
    "mhc_double_stream_position_for_loop": ["mid", "edge"],
    "insert_ngram_layer_idx": [[0], [1, 2]],
    "emb_neighbor_num": [2],
    "emb_split_num": [4],
    "emb_tp_num": [1],
    "ngram_vocab_size_ratio": [0.25],
    "ngram_embedding_hidden_size": [16],
    "ngram_layer_downproject_size": [16],
    "depth_attention_stride": [1],
    "loop_middle_layers": [1],
    "pretraining_tp": [2, 0, True],
    "num_residual_streams": [2],
    "mhc_sinkhorn_iterations": [5],
    "mhc_init_gating_factor": [0.02],
    "ngram_fused_mode": ["concat"],
    "depth_attention_recent_window": [1],
    "depth_attention_static_anchor_once": [False],
}


@pytest.mark.parametrize("field", [*UNBUILT, *UNREAD])
def test_an_option_that_no_released_weights_use(field: str) -> None:
    """On: refused by name; off, as the authors' class writes it: no matter (CASES A32)."""
    on: list[Any] = _ON.get(field, [True, 1, "on"])
    for value in on:
        changes: dict[str, Any] = {field: value}
        error = refused(config(**changes), field)
        assert f"--ignore-config {field}" in str(error)
        assert read(config(**changes), field) == read(config())
    neutral = UNBUILT[field] if field in UNBUILT else (UNREAD[field], None)
    for value in neutral:
        changes = {field: value}
        assert read(config(**changes)) == read(config())


# What the authors' class writes out beside the fields of the golden files.
_FALSE = {
    *("enable_hyper_connection", "enable_mhc", "enable_h_res_identity", "mhc_identity_nohresparam"),
    *("mhc_diff_for_loop", "ngram_mod_force_prime", "ngram_compressed_tokenizer"),
    *("ngram_insert_all_layers", "skip_ngram_for_input", "enable_depth_attention"),
    *("enable_double_loop_split", "loop_share_kv"),
}
_NULL = {
    *("mhc_double_stream_position_for_loop", "emb_neighbor_num", "emb_split_num", "emb_tp_num"),
    *("ngram_vocab_size_ratio", "ngram_embedding_hidden_size", "ngram_layer_downproject_size"),
    *("depth_attention_stride", "loop_middle_layers"),
}
_WRITTEN: dict[str, Any] = {
    **dict.fromkeys(_FALSE, False),
    **dict.fromkeys(_NULL, None),
    "insert_ngram_layer_idx": [],
    "pretraining_tp": 1,
    "num_residual_streams": 4,
    "mhc_sinkhorn_iterations": 20,
    "mhc_init_gating_factor": 0.01,
    "ngram_fused_mode": "average",
    "depth_attention_recent_window": 0,
    "depth_attention_static_anchor_once": True,
}


def test_a_file_that_the_authors_class_wrote() -> None:
    """A fine-tune saved with every option at its default is the model it was; and a name lost
    from the tables would leave its option to the check of unknown fields."""
    assert read(config(**_WRITTEN)) == read(config())
    assert {*_WRITTEN} == {*UNBUILT, *UNREAD}


def test_rope_spellings() -> None:
    """Top-level, nested, or both if equal; a conflict or absence is an error (CASES A19, A35)."""
    nested = {"rope_theta": 7e7, "rope_type": "default"}
    wanted = read(config())
    for field in ("rope_parameters", "rope_scaling"):
        changes: dict[str, Any] = {"rope_theta": ..., "rope_scaling": ..., field: nested}
        assert read(config(**changes)) == wanted
    assert read(config(rope_parameters=nested)) == wanted
    for neutral in (..., None, {}, {"rope_type": "default"}, {"type": "default"}):
        assert read(config(rope_scaling=neutral)) == wanted
    refused(config(rope_parameters={"rope_theta": 1e4}), "rope_theta")
    refused(config(rope_theta=...), "rope_theta")


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_scaled_positions_are_refused(kind: str, spelling: str) -> None:
    """The authors' code scales positions; no released file does, and none of it is built (A35)."""
    error = refused(config(rope_scaling={spelling: kind, "factor": 2.0}), spelling)
    assert "rope_scaling" in str(error)


def test_unknown_fields() -> None:
    """A switch that nobody knows may change the mathematics; neutral values pass (A20, A32)."""
    neutral: dict[str, Any] = {"a": None, "b": False, "d": {}, "e": []}
    assert read(config(**neutral)) == read(config())
    refused(config(moe={"experts": 8}), "moe")
    refused(config(sliding_window=4), "sliding_window")


def test_end_ids() -> None:
    """One id, a list, or none; a converted file without one is not guessed for (CASES A41)."""
    assert read(config(eos_token_id=[159, 3, 159])).eos_token_ids == (159, 3)
    assert read(config(eos_token_id=None)).eos_token_ids == ()


def test_the_small_example_is_of_this_kind() -> None:
    """`rlt check` builds it: a configuration that the reader refuses would check nothing."""
    shape = read(small_config())
    assert (shape.loops, shape.vocab_size, shape.tracks[0].num_layers) == (3, 259, 2)
    assert own(shape).head_dim * own(shape).num_heads == 2 * own(shape).hidden_size


def test_reading_a_configuration_imports_no_torch() -> None:
    """`rlt explain` answers before torch is imported."""
    code = "import sys, rlt_nanbeige, rlt_nanbeige.config; raise SystemExit('torch' in sys.modules)"
    root = Path(__file__).parents[1]
    folders = [str(root), str(root / "plugins/rlt_nanbeige")]
    path = f"import sys; sys.path[:0] = {folders!r}; "
    assert subprocess.run([sys.executable, "-c", path + code], check=False).returncode == 0
