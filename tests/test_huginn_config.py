"""Huginn's config.json, read strictly: both golden spellings, absences, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlt_core.contract.errors import ConfigError
from tests.huginn import fields, own, read

# What nobody may guess: shapes and mathematics.
NEEDED = {
    *("architecture_class_name", "bias", "block_class_name", "block_size", "injection_type"),
    *("intermediate_size", "mean_recurrence", "mlp_class_name", "n_embd", "n_heads"),
    *("n_layers_in_coda", "n_layers_in_prelude", "n_layers_in_recurrent_block", "nonlin_name"),
    *("norm_class_name", "norm_eps", "qk_bias", "state_init", "tie_embeddings", "vocab_size"),
}


def refused(found: dict[str, Any], field: str) -> ConfigError:
    """The error, which must name the field."""
    with pytest.raises(ConfigError) as caught:
        read(found)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


def test_golden_shapes() -> None:
    """huginn_a has what the configuration class writes, huginn_b what was published."""
    shape = read(fields())
    assert (shape.loops, shape.vocab_size, shape.state_width) == (6, 160, 128)
    assert (shape.max_positions, shape.dtype, shape.eos_token_ids) == (128, "float32", ())
    assert (shape.exit_policy, shape.min_leave_fraction) == ("fixed", 0.25)
    assert shape.has_prelude_layers
    assert shape.has_coda_layers
    assert shape.table_widths == {"state_table": 64}
    assert [track.num_layers for track in shape.tracks] == [1, 2, 1]
    other = read(fields("huginn_b"))
    assert [track.num_layers for track in other.tracks] == [2, 4, 2]
    assert [track.per_depth for track in other.tracks] == [False, True, False]
    assert {(track.num_kv_heads, track.head_dim) for track in other.tracks} == {(4, 10)}
    rope = own(other).rope
    assert (rope.theta, rope.dim, rope.interleaved) == (50000.0, 10, True)


def test_the_published_shape() -> None:
    """Huginn-0125: 55 heads of 96, 32 loops and up to 128, planes for the core alone."""
    sizes = {"n_embd": 5280, "intermediate_size": 17920, "vocab_size": 65536, "block_size": 4096}
    heads = {"n_heads": ..., "num_attention_heads": 55, "num_key_value_heads": 55}
    rest: dict[str, Any] = {"mean_recurrence": 32, "torch_dtype": "bfloat16"}
    shape = read(fields("huginn_b", **sizes, **heads, **rest))
    assert (shape.loops, shape.max_loops, shape.dtype) == (32, 128, "bfloat16")
    assert own(shape).head_dim == 96
    assert shape.max_positions == 4096
    per_token = sum(
        2 * t.num_layers * (32 if t.per_depth else 1) * t.num_kv_heads * t.head_dim * 2
        for t in shape.tracks
    )
    assert per_token == 132 * 2 * 5280 * 2  # 2.8 MB of bfloat16


def test_start_latents_follow_init_values() -> None:
    """The deviation is init_values.std x sqrt(E); without it sqrt(2 / 5), whatever E is."""
    for found in (fields(), fields("huginn_b"), fields(init_values=...)):
        assert math.isclose(own(read(found)).start_std, math.sqrt(0.4), rel_tol=1e-12)
    edited = own(read(fields(init_values={"std": 0.5})))
    assert edited.start_std == 4.0
    refused(fields(init_values={"std": "0.5"}), "std")
    refused(fields(init_values={"std": 0.1, "embed_scale": 1.0}), "embed_scale")
    refused(fields(init_values={"std": 0.1, "cut": 2.0}), "cut")
    refused(fields(init_values=[0.1]), "init_values")


def test_every_field_removed_in_turn() -> None:
    """A guessed default for a shape or the mathematics loads quietly (CASES A20)."""
    whole = read(fields())
    for field in fields():
        removed: dict[str, Any] = {field: ...}
        found = fields(**removed)
        if field == "n_heads":  # the other spelling is asked for
            refused(found, "num_attention_heads")
        elif field in NEEDED:
            assert "missing" in str(refused(found, field))
        else:
            assert read(found) == whole, field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("mean_recurrence", value) for value in (0, -1, True, 6.0, None, "6")],
        *[("n_embd", value) for value in (0, True, "64", 63, 20)],
        *[("norm_eps", value) for value in (float("nan"), -1e-6, True)],
        *[("tie_embeddings", value) for value in (0, None, "true")],
        *[("qk_bias", value) for value in (1, None)],
        *[("bias", value) for value in (0, "no")],
        *[("num_key_value_heads", value) for value in (2, 8, 1)],
        *[("n_layers_in_prelude", value) for value in (0, -1, 1.0)],
        *[("n_layers_in_coda", value) for value in (0, None)],
        *[("rope_base", value) for value in (0.5, "50000", float("inf"))],
        *[("eos_token_id", value) for value in (160, -1, True, [0, 160])],
        *[("torch_dtype", value) for value in ("float16", "int8")],
        ("num_attention_heads", 2),
        ("tie_word_embeddings", False),
        # contradictions with other fields
        *[("padded_vocab_size", value) for value in (176, True, "160")],
        *[("n_layers", value) for value in (5, 8)],
        # switches that are not built
        *[("test_time_noise", value) for value in (0.1, 1, True, "0", float("nan"))],
        *[("injection_type", value) for value in ("add", "gate", "none", "ffn", None, 1)],
        *[("state_init", value) for value in ("normal", "zero", "embed", "unit", None)],
        *[("block_class_name", value) for value in ("TransformerPreNormBlock", None)],
        *[("norm_class_name", value) for value in ("LayerNorm", "RMSNorm", None)],
        *[("mlp_class_name", value) for value in ("BaseMLP", None)],
        *[("nonlin_name", value) for value in ("GELU", "silu", None)],
        ("architecture_class_name", "GPT"),
    ],
)
def test_wrong_values(field: str, value: Any) -> None:
    """Wrong type (true is no number), out of range, contradictory, or a switch not built."""
    changes = {field: value}
    refused(fields(**changes), field)


def test_unknown_fields() -> None:
    """A switch nobody read may change the mathematics; neutral values pass (CASES A20)."""
    for value in (True, 1, 0.5, "on", {"x": 1}):
        error = refused(fields(recall_init=value), "recall_init")
        assert "--ignore-config recall_init" in str(error)
        assert read(fields(recall_init=value), "recall_init") == read(fields())
    assert read(fields(recall_init=False)) == read(fields())


def test_what_training_alone_reads_is_no_matter() -> None:
    """A stale head_dim comes from loading the published file; the attention does not read it."""
    whole = read(fields())
    for changes in (
        {"head_dim": 1},
        {"sampling_scheme": "fixed", "mean_backprop_depth": 1},
        {"init_strategy": "normal", "init_orthogonal": True},
        {"test_time_noise_type": "geom"},
        {"test_time_noise": None},
        {"n_layers": None},
    ):
        assert read(fields(**changes)) == whole


def test_switches_that_are_built() -> None:
    """An adapter bias, no bias on queries and keys, an untied head, end ids of the file."""
    shape = read(fields(bias=True, qk_bias=False, tie_embeddings=False, eos_token_id=[5, 8]))
    assert (own(shape).adapter_bias, own(shape).qk_bias, own(shape).tie_embeddings) == (
        True,
        False,
        False,
    )
    assert shape.eos_token_ids == (5, 8)
    assert own(read(fields(rope_base=10000))).rope.theta == 10000.0


def test_reading_a_configuration_imports_no_torch() -> None:
    """`rlt explain` answers before torch is imported."""
    code = "import sys, rlt_huginn, rlt_huginn.config; raise SystemExit('torch' in sys.modules)"
    root = Path(__file__).parents[1]
    path = f"import sys; sys.path[:0] = {[str(root), str(root / 'plugins/rlt_huginn')]!r}; "
    assert subprocess.run([sys.executable, "-c", path + code], check=False).returncode == 0
