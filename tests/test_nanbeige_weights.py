"""rlt-nanbeige's tensors: names, shapes, what contradicts config.json, and closed forms."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlt_core.contract.errors import TensorError
from rlt_core.runtime.weights import load_weights, random_weights
from rlt_nanbeige.config import read_config
from rlt_nanbeige.example import small_config
from rlt_nanbeige.model import Nanbeige
from tests.engines import GOLDEN, load_model
from tests.reference import Text, run_pass

CPU = torch.device("cpu")


def _folder(name: str, path: Path, **changes: object) -> Path:
    """A copy of a golden checkpoint with other fields in config.json."""
    path.mkdir()
    shutil.copy(GOLDEN / name / "model.safetensors", path)
    config = json.loads((GOLDEN / name / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def _load(folder: Path) -> Nanbeige:
    config = json.loads((folder / "config.json").read_text())
    shape = read_config(config, str(folder), frozenset())
    model = Nanbeige(shape, device=CPU, dtype=torch.float32)
    load_weights(model, folder)
    return model


@pytest.mark.parametrize(
    ("name", "changes", "kind", "tensor"),
    [
        ("nanbeige_a", {"head_dim": 16, "kv_channels": 16}, "misshapen", "self_attn.q_proj.weight"),
        ("nanbeige_a", {"head_dim": 64, "kv_channels": 64}, "misshapen", "self_attn.o_proj.weight"),
        ("nanbeige_a", {"qk_layernorm": True}, "missing", "self_attn.q_layernorm.weight"),
        ("nanbeige_c", {"qk_layernorm": False}, "unexpected", "self_attn.k_layernorm.weight"),
        ("nanbeige_a", {"attention_bias": True}, "missing", "self_attn.o_proj.bias"),
        ("nanbeige_c", {"attention_bias": False}, "unexpected", "self_attn.v_proj.bias"),
        ("nanbeige_a", {"mlp_bias": True}, "missing", "mlp.gate_proj.bias"),
        ("nanbeige_c", {"mlp_bias": False}, "unexpected", "mlp.down_proj.bias"),
        ("nanbeige_c", {"tie_word_embeddings": False}, "missing", "lm_head.weight"),
    ],
)
def test_a_field_that_the_tensors_contradict(
    name: str, changes: dict[str, Any], kind: str, tensor: str, tmp_path: Path
) -> None:
    """head_dim is checked against the projections' shapes, and each flag by its tensors (A30)."""
    folder = _folder(name, tmp_path / "model", **changes)
    with pytest.raises(TensorError) as caught:
        _load(folder)
    listed = getattr(caught.value, kind)
    layers = [line for line in listed if tensor in line]
    assert len(layers) == (1 if tensor == "lm_head.weight" else 3)


def test_a_head_that_is_tied_is_one_matrix(tmp_path: Path) -> None:
    """Stored once, or twice and equal; two that differ are not one (nanbeige_c stores one)."""
    folder = _folder("nanbeige_c", tmp_path / "model")
    model = _load(folder)
    assert model.lm_head is model.embedding
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    _load(folder)
    tensors["lm_head.weight"][3, 5] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(TensorError, match=r"lm_head\.weight"):
        _load(folder)


@pytest.mark.parametrize("name", ["nanbeige_b", "nanbeige_c"])
def test_empty_sublayers_have_a_closed_form(name: str) -> None:
    """A loop is then its norm alone, or nothing where the norm is skipped until the head."""
    model = _load(GOLDEN / name)
    for layer in model.layers:
        for tensor in (layer.o, layer.down, layer.o_bias, layer.down_bias):
            if tensor is not None:
                tensor.zero_()
    tokens = torch.tensor([7, 2])
    depths = torch.full_like(tokens, 3)
    run = run_pass(model, Text(tokens, 2, depths, depths, 3), "last_exited")
    state, skips = model.embedding[tokens].double(), model.config.skip_loop_final_norm
    for depth in (1, 2, 3):
        normed = state / (state.square().mean(-1, keepdim=True) + 1e-5).sqrt() * model.norm
        logits = run.logits(torch.full_like(tokens, depth))
        _close(logits, normed @ model.lm_head.double().T)
        state = state if skips else normed
        _close(run.states[depth], state)


def _close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=1e-4, rtol=0)


def test_random_biases_lie_near_zero() -> None:
    """A benchmark's random model: biases near 1, drawn as norms are, would drown its products."""
    fields = small_config() | {"attention_bias": True, "mlp_bias": True, "qk_layernorm": True}
    model = Nanbeige(read_config(fields, "here", frozenset()), device=CPU, dtype=torch.float32)
    random_weights(model, 0)
    for name, tensor in model.weight_table().items():
        if name.endswith(".bias"):
            assert tensor.abs().max() < 0.5, name
        if "norm" in name:
            assert (tensor - 1).abs().max() < 0.5, name


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A checkpoint's modeling file that raises must not matter (CASES A36)."""
    folder = _folder("nanbeige_b", tmp_path / "model")
    for file in ("modeling_nanbeige.py", "configuration_nanbeige.py"):
        (folder / file).write_text("raise RuntimeError('remote code was run')\n")
    _load(folder)


def test_shape_of_another_model_is_refused() -> None:
    """The core hands `config` over unread; a foreign one must fail by name."""
    shape = load_model("ouro_b")[0]
    with pytest.raises(TypeError, match="rlt_nanbeige"):
        Nanbeige(shape, device=CPU, dtype=torch.float32)
