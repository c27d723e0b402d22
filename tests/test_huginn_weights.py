"""Huginn's checkpoints: one or two copies of the head, the saved rope table, what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlt_core.contract.errors import TensorError
from rlt_core.runtime.weights import load_weights
from rlt_huginn.model import Huginn
from tests.huginn import CPU, GOLDEN, MODELS, build, fields, read, unloaded

Change = Callable[[dict[str, Tensor]], object]
HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"
MADE = "model.safetensors"


def altered(folder: Path, name: str, change: Change) -> Path:
    """A copy of a golden checkpoint whose tensors went through `change`."""
    made = folder / name
    shutil.copytree(GOLDEN / name, made)
    tensors = load_file(made / "model.safetensors")
    change(tensors)
    save_file({key: value.contiguous() for key, value in tensors.items()}, made / MADE)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_the_file_is_where_it_belongs(name: str) -> None:
    """Guards the table of names, and against a loader that changes what it loads (A56)."""
    stored, model = load_file(GOLDEN / name / MADE), build(GOLDEN / name)
    table = model.weight_table()
    assert set(stored) - {"freqs_cis", HEAD} == set(table)
    for key, tensor in table.items():
        assert torch.equal(tensor, stored[key]), key
    assert model.lm_head is model.wte


def test_one_or_two_copies_of_the_head(tmp_path: Path) -> None:
    """A tied checkpoint stores the head or leaves it out; a copy that differs is refused (A50)."""
    alone = altered(tmp_path / "1", "huginn_b", lambda tensors: tensors.pop(HEAD))
    wanted = build(GOLDEN / "huginn_b")
    assert torch.equal(build(alone).lm_head, wanted.lm_head)
    copied = altered(
        tmp_path / "2", "huginn_a", lambda tensors: tensors.update({HEAD: tensors[EMBEDDING] + 0})
    )
    assert torch.equal(build(copied).lm_head, build(GOLDEN / "huginn_a").lm_head)
    corrupt = altered(tmp_path / "3", "huginn_b", lambda tensors: tensors[HEAD][3, 5].add_(1))
    with pytest.raises(TensorError, match=HEAD):
        build(corrupt)


def test_an_untied_head_and_an_adapter_bias(tmp_path: Path) -> None:
    """Switches that the published file leaves off have tensors of their own."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["transformer.adapter.bias"] = torch.arange(64.0)
        tensors[HEAD] = tensors[EMBEDDING] * 2
        for key in [key for key in tensors if key.endswith("qk_bias")]:
            del tensors[key]

    folder = altered(tmp_path, "huginn_a", change)
    config = fields("huginn_a", bias=True, tie_embeddings=False, qk_bias=False)
    folder.joinpath("config.json").write_text(json.dumps(config))
    model = build(folder)
    assert torch.equal(model.lm_head, model.wte * 2)
    assert model.adapter_bias is not None
    assert torch.equal(model.adapter_bias, torch.arange(64.0))
    assert model.tied_weights() == {}
    assert all(block.qk_bias is None for blocks in model.blocks.values() for block in blocks)


def test_the_saved_rope_table_may_be_absent(tmp_path: Path) -> None:
    """It is computed; a file without it holds the same model."""
    folder = altered(tmp_path, "huginn_a", lambda tensors: tensors.pop("freqs_cis"))
    assert torch.equal(build(folder).adapter, build(GOLDEN / "huginn_a").adapter)


def replaced(name: str, made: Callable[[Tensor], Tensor]) -> Change:
    """A change that puts another tensor at a name."""
    return lambda tensors: tensors.update({name: made(tensors[name])})


BLOCK = "transformer.prelude.0"
FAULTS: dict[str, Change] = {
    "transformer.ln_f.weight": lambda t: t.pop("transformer.ln_f.weight"),
    "coda.0.norm_4": lambda t: t.pop("transformer.coda.0.norm_4.weight"),
    "core_block.1.attn.qk_bias": lambda t: t.pop("transformer.core_block.1.attn.qk_bias"),
    "adapter.bias": lambda t: t.update({"transformer.adapter.bias": torch.zeros(64)}),
    "core_block.2": lambda t: t.update({"transformer.core_block.2.norm_1.weight": torch.ones(64)}),
    "wte.weight [159, 64]": replaced(EMBEDDING, lambda x: x[:-1]),
    "adapter.weight [64, 64]": replaced("transformer.adapter.weight", lambda x: x[:, :64]),
    "qk_bias [2, 4, 16]": replaced(f"{BLOCK}.attn.qk_bias", lambda x: x.squeeze(1)),
    "fc.weight [64, 128]": replaced(f"{BLOCK}.mlp.fc.weight", lambda x: x.T),
}


@pytest.mark.parametrize("named", FAULTS)
def test_missing_left_over_and_misshapen_tensors(tmp_path: Path, named: str) -> None:
    """Printing a warning and going on gives another model (A54)."""
    with pytest.raises(TensorError) as caught:
        build(altered(tmp_path, "huginn_a", FAULTS[named]))
    assert named in str(caught.value)


def test_a_float32_file_loads_as_bfloat16() -> None:
    """Weights are stored in float32 and declared bfloat16; keeping them doubles memory (A50)."""
    model = Huginn(read(fields("huginn_b")), device=CPU, dtype=torch.bfloat16)
    load_weights(model, GOLDEN / "huginn_b")
    stored = load_file(GOLDEN / "huginn_b" / MADE)
    for key, tensor in model.weight_table().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, stored[key].bfloat16())


def test_shape_of_another_model_is_refused() -> None:
    """The core hands `config` over unread; a foreign one must fail by name."""
    with pytest.raises(TypeError, match="rlt_huginn"):
        unloaded(dataclasses.replace(read(fields()), config=None))
