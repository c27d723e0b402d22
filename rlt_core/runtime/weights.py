"""Weights from safetensors, streamed tensor by tensor into the places that the model names.

Only model.safetensors, or the shards that model.safetensors.index.json lists, are read: data
without code. Pickled files (*.bin, *.pt) are never opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlt_core.contract.errors import CheckpointError, TensorError

if TYPE_CHECKING:
    from rlt_core.contract.protocols import WeightedModel

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_weights(model: WeightedModel, folder: Path | str) -> None:
    """Fill every tensor of the model's weight table from a checkpoint folder.

    Values are cast to the target's dtype. Nothing is written before all names and shapes have
    been checked. Raises TensorError with the names that are missing, left over or misshapen
    (ignored and tied names excepted), or with what is damaged; CheckpointError when the folder
    holds no safetensors.
    """
    folder = Path(folder)
    with ExitStack() as stack:
        stored = _open_all(folder, stack)
        _check_names(model, stored, folder)
        with torch.no_grad():
            for name, target in model.weight_table().items():
                target.copy_(_tensor(stored, name, folder))
        _check_tied(model, stored, folder)


def random_weights(model: WeightedModel, seed: int) -> None:
    """Fill the weight table with seeded random values, for benchmarks and tests without a file.

    Matrices are drawn so that a product keeps the scale of its input; vectors near 1 (norms),
    but near 0 single values and what a checkpoint calls a bias. They are drawn where they lie:
    a seed gives other values on a GPU than on a CPU.
    """
    draws: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for name, target in sorted(model.weight_table().items()):
            device = target.device
            if device not in draws:
                draws[device] = torch.Generator(device).manual_seed(seed)
            values = torch.randn(target.shape, generator=draws[device], device=device)
            scale = target.shape[-1] ** -0.5 if target.ndim > 1 else 0.1
            is_norm = target.ndim == 1 and target.numel() > 1 and not name.endswith("bias")
            target.copy_(values * scale + is_norm)


_Stored = Mapping[str, Any]  # name -> the open file (safetensors.safe_open) that holds it


def _open_all(folder: Path, stack: ExitStack) -> _Stored:
    stored: dict[str, Any] = {}
    for file, names in _files(folder).items():
        opened = stack.enter_context(_open(folder / file))
        held = set(opened.keys())
        if names and not names <= held:
            missing = sorted(names - held)
            damaged = f"the index says that {file} holds them"
            raise TensorError(str(folder), missing=missing, damaged=damaged)
        stored |= dict.fromkeys(held, opened)
    return stored


def _files(folder: Path) -> dict[str, set[str]]:
    """File name -> the names that an index expects in it (none known for a single file)."""
    if (folder / INDEX).is_file():
        return _read_index(folder / INDEX)
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth"))
    found = f" (found {', '.join(others[:3])}: pickled files are not read)" if others else ""
    raise CheckpointError(
        str(folder),
        f"no {SINGLE} and no {INDEX}{found}",
        "download the checkpoint again, with its safetensors files",
    )


def _read_index(path: Path) -> dict[str, set[str]]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in table.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorError(str(path), damaged=f"not an index of shards: {error!r}") from error
    files: dict[str, set[str]] = {}
    for name, file in pairs:
        # a shard lies beside its index; a path would leave the folder
        if Path(file).name != file:
            raise TensorError(str(path), damaged=f"shard name '{file}' is a path")
        files.setdefault(file, set()).add(name)
    return files


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise TensorError(str(path), damaged="the index names this shard, and it is not there")
    try:
        opened = safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise TensorError(str(path), damaged=f"damaged or cut short: {error}") from error
    with opened:
        yield opened


def _check_names(model: WeightedModel, stored: _Stored, folder: Path) -> None:
    table, tied = model.weight_table(), model.tied_weights()
    known = set(table) | set(tied) | model.ignored_weights()
    missing = sorted(set(table) - set(stored))
    left_over = sorted(set(stored) - known)
    wrong = [
        f"{name} {_shape(stored[name], name)} (the model wants {list(table[name].shape)})"
        for name in sorted(set(table) & set(stored))
        if _shape(stored[name], name) != list(table[name].shape)
    ]
    if missing or left_over or wrong:
        raise TensorError(str(folder), missing=missing, unexpected=left_over, misshapen=wrong)


def _shape(file: Any, name: str) -> list[int]:
    return list(file.get_slice(name).get_shape())


def _tensor(stored: _Stored, name: str, folder: Path) -> Tensor:
    try:
        tensor: Tensor = stored[name].get_tensor(name)
    except (SafetensorError, OSError, ValueError) as error:
        raise TensorError(str(folder), damaged=f"{name} cannot be read: {error}") from error
    if not tensor.is_floating_point():
        raise TensorError(str(folder), misshapen=[f"{name} holds {tensor.dtype}, not numbers"])
    return tensor


def _check_tied(model: WeightedModel, stored: _Stored, folder: Path) -> None:
    table = model.weight_table()
    differing = [
        f"{name} (it differs from {source}, to which it is tied)"
        for name, source in sorted(model.tied_weights().items())
        if name in stored
        and name not in table
        and not torch.equal(_tensor(stored, name, folder), _tensor(stored, source, folder))
    ]
    if differing:
        raise TensorError(str(folder), unexpected=differing)
