"""A stage whose weights are drawn: benchmarks need a config.json and no download."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import torch

from rlt_core.runtime.weights import random_weights
from rlt_core.schedule.request import EngineRequest
from rlt_core.stage.build import build_engine, build_parts
from rlt_core.stage.config import StageConfig
from rlt_core.testing.tiny_plugin import registry_with_tiny

GOLDEN = Path(__file__).parent / "golden" / "ouro_b"


def _config(tmp_path: Path, seed: int) -> StageConfig:
    """As it reaches a stage process: through a message."""
    shutil.copy(GOLDEN / "config.json", tmp_path)
    config = StageConfig(
        model_path=str(tmp_path),
        exit_policy="fixed",
        dtype="float32",
        num_slots=2,
        max_len=16,
        random_weights=seed,
    )
    return msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=StageConfig)


def _tokens(config: StageConfig) -> list[int]:
    engine = build_engine(config, registry_with_tiny()).engine
    prompt = np.arange(5, 9)
    engine.add(EngineRequest(request_id=1, prompt=prompt, max_tokens=8, loops=4, max_loops=4))
    found: list[int] = []
    while engine.has_work:
        events = engine.step()
        assert events.errors == {}
        found += events.token.tolist()
    return found


def test_a_folder_without_weights_runs_and_the_seed_decides(tmp_path: Path) -> None:
    """Guards `random_weights` on its way to a stage process, and logits that are not finite."""
    first, again, other = (_tokens(_config(tmp_path, seed)) for seed in (3, 3, 4))
    assert len(first) == 8
    assert first == again != other


def test_every_weight_is_drawn(tmp_path: Path) -> None:
    """Guards against a tensor that keeps what the memory held before."""
    model = build_parts(_config(tmp_path, 3), registry_with_tiny()).model
    table = model.weight_table()
    for tensor in table.values():
        tensor.fill_(torch.nan)
    random_weights(model, 3)
    assert [name for name, tensor in table.items() if not tensor.isfinite().all()] == []
