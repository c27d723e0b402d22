"""Loading weights: every way in which a checkpoint can fail to fit, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlt_core.contract.errors import CheckpointError, TensorError
from rlt_core.runtime.weights import INDEX, SINGLE, load_weights, random_weights


class TwoMatrices:
    """Weights of a model: `a` and `b` are views of one packed tensor, `v` a vector."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.packed = torch.full((5, 3), torch.nan, dtype=dtype)
        self.v = torch.full((3,), torch.nan, dtype=dtype)

    def weight_table(self) -> Mapping[str, Tensor]:
        a, b = self.packed.split((2, 3))
        return {"a": a, "b": b, "v": self.v}

    def ignored_weights(self) -> frozenset[str]:
        return frozenset({"rope"})

    def tied_weights(self) -> Mapping[str, str]:
        return {"head": "a"}


def tensors(**changes: Tensor | None) -> dict[str, Tensor]:
    """The right tensors, with changes; None removes one."""
    right: dict[str, Tensor | None] = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.arange(9.0).view(3, 3) + 10,
        "v": torch.tensor([1.0, 2.0, 3.0]),
    }
    return {name: t for name, t in (right | changes).items() if t is not None}


def load(folder: Path, dtype: torch.dtype = torch.float32) -> TwoMatrices:
    """The model after loading; the loader needs no more of it than the three methods."""
    model = TwoMatrices(dtype)
    load_weights(model, folder)  # type: ignore[arg-type]
    return model


def stored(folder: Path, **changes: Tensor | None) -> Path:
    """A folder with model.safetensors."""
    save_file(tensors(**changes), folder / SINGLE)
    return folder


def sharded(folder: Path) -> Path:
    """A folder with two shards and their index."""
    parts = {"one.safetensors": ("a", "v"), "two.safetensors": ("b",)}
    for file, names in parts.items():
        save_file({name: tensors()[name] for name in names}, folder / file)
    where = {name: file for file, names in parts.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def failure(folder: Path) -> TensorError:
    """The error of loading it: one to four lines."""
    with pytest.raises(TensorError) as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [stored, sharded])
def test_values_reach_the_packed_places(
    fill: type[object], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Views of a packed tensor are filled in place and cast."""
    model = load(fill(tmp_path), dtype)  # type: ignore[arg-type, call-arg]
    right = tensors()
    assert torch.equal(model.packed, torch.cat((right["a"], right["b"])).to(dtype))
    assert torch.equal(model.v, right["v"].to(dtype))


def test_missing_left_over_and_misshapen_are_all_named(tmp_path: Path) -> None:
    """Lost gates and second norms load quietly elsewhere (CASES A7); counts must match (A8)."""
    error = failure(
        stored(tmp_path, a=None, b=torch.zeros(3, 4), stray=torch.zeros(1), more=torch.zeros(1))
    )
    assert error.missing == ("a",)
    assert error.unexpected == ("more", "stray")
    assert error.misshapen == ("b [3, 4] (the model wants [3, 3])",)
    for word in ("missing 1: a", "left over 2: more, stray", "misshapen 1: b"):
        assert word in str(error)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"v": None}, "missing"),
        ({"stray": torch.zeros(1)}, "unexpected"),
        ({"v": torch.zeros(1)}, "misshapen"),
        ({"a": torch.zeros(3, 2)}, "misshapen"),
    ],
)
def test_one_fault_is_enough(changes: dict[str, Tensor], field: str, tmp_path: Path) -> None:
    """A vector of one entry would broadcast into its place, a stray tensor be forgotten."""
    assert len(getattr(failure(stored(tmp_path, **changes)), field)) == 1


def test_nothing_is_written_when_names_do_not_fit(tmp_path: Path) -> None:
    """A refusal leaves no half-loaded model."""
    model = TwoMatrices()
    with pytest.raises(TensorError):
        load_weights(model, stored(tmp_path, v=None))  # type: ignore[arg-type]
    assert model.packed.isnan().all()


def test_ignored_and_tied_names(tmp_path: Path) -> None:
    """A stored rope table or a second, equal copy of a tied matrix is fine; another is not."""
    load(stored(tmp_path, rope=torch.ones(7), head=tensors()["a"].clone()))
    assert failure(stored(tmp_path, head=torch.zeros(2, 3))).unexpected[0].startswith("head ")


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    """A download that stopped half-way: after the header, inside it, at nothing."""
    whole = (stored(tmp_path) / SINGLE).read_bytes()
    for content in (whole[:-8], whole[:40], whole[:4], b"", b"{}" * 50, b"\xff" * len(whole)):
        (tmp_path / SINGLE).write_bytes(content)
        error = failure(tmp_path)
        assert error.damaged is not None
        assert SINGLE in error.path


def test_missing_shard(tmp_path: Path) -> None:
    """The index names a file that is not there, or that lacks a tensor."""
    folder = sharded(tmp_path)
    (folder / "two.safetensors").unlink()
    assert "two.safetensors" in str(failure(folder))
    save_file({"other": torch.zeros(1)}, folder / "two.safetensors")
    assert failure(folder).missing == ("b",)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../evil.safetensors"}}'],
)
def test_broken_index(text: str, tmp_path: Path) -> None:
    """An index that is no index, or that leads out of the folder."""
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_shards_outside_the_folder_are_not_opened(tmp_path: Path) -> None:
    """An index may not lead out of its folder, even to a file that fits."""
    stored(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    where = dict.fromkeys(tensors(), f"../{SINGLE}")
    (inner / INDEX).write_text(json.dumps({"weight_map": where}))
    assert "is a path" in str(failure(inner))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    """pytorch_model.bin may run code when it is opened."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*not read"):
        load(tmp_path)


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    """Integers cast to numbers would load quietly."""
    error = failure(stored(tmp_path, v=torch.tensor([1, 2, 3])))
    assert error.misshapen == ("v holds torch.int64, not numbers",)


def test_random_weights_are_seeded() -> None:
    """Benchmarks without a file: same seed, same bits; finite everywhere."""
    models = [TwoMatrices() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        random_weights(model, seed)  # type: ignore[arg-type]
    assert torch.equal(models[0].packed, models[1].packed)
    assert not torch.equal(models[0].packed, models[2].packed)
    assert models[0].packed.isfinite().all()
    assert models[0].v.isfinite().all()


def test_golden_checkpoint_loads_by_its_own_names() -> None:
    """Every stored tensor of a real format is used (CASES A7)."""
    from rlt_ouro.config import read_config
    from rlt_ouro.model import Ouro

    folder = Path(__file__).parent / "golden" / "ouro_a"
    shape = read_config(json.loads((folder / "config.json").read_text()), "here", frozenset())
    model = Ouro(shape, device=torch.device("cpu"), dtype=torch.float32)
    load_weights(model, folder)
    for name, tensor in load_file(folder / SINGLE).items():
        assert torch.equal(model.weight_table()[name], tensor)
