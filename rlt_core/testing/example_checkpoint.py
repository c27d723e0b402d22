"""A small checkpoint with random weights, for a model whose real weights are not at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlt_core.contract.errors import OptionError, RltError
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.model_folder import CONFIG
from rlt_core.plugins.registry import Registry, discover
from rlt_core.testing.byte_tokenizer import write_byte_tokenizer
from rlt_core.testing.tiny import VOCAB_SIZE


def write_example(
    model: str, folder: Path, *, seed: int = 0, registry: Registry | None = None
) -> Path:
    """Write a checkpoint folder of the installed model with id `model`; returns it.

    config.json is the model's example (ModelSpec.example), model.safetensors holds random weights
    drawn by `seed`, the same for a seed. A vocabulary of 259 or more gets a tokenizer of bytes.

    Raises UnknownNameError, RltError for a model without an example, OptionError when the folder
    holds something already, and what the model's reader raises.
    """
    import torch
    from safetensors.torch import save_file

    from rlt_core.runtime.weights import random_weights

    registry = registry or discover()
    spec = registry.get(ModelSpec, model)
    source = registry.source(spec)
    if spec.example is None:
        raise RltError(
            f"{source} gives no example of '{model}': ModelSpec.example is None\n"
            "Fix: a function that returns a small config.json, as docs/writing_a_plugin.md shows"
        )
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise OptionError("DIR", str(folder), "is there already; nothing was written")
    config = dict(load_object(spec.example, source)())
    shape = load_object(spec.reader, source)(config, str(folder / CONFIG), frozenset())
    kind = getattr(torch, shape.dtype)
    built = load_object(spec.factory, source)(shape, device=torch.device("cpu"), dtype=kind)
    random_weights(built, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made: {error.strerror}"
        raise OptionError("DIR", str(folder), reason, "Fix: another folder") from error
    tensors = {name: t.contiguous().clone() for name, t in built.weight_table().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if shape.vocab_size >= VOCAB_SIZE:
        write_byte_tokenizer(folder)
    return folder
