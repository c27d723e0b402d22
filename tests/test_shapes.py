"""The shapes in docs/shapes, which benchmarks on random weights stand for whole models by."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlt_core.plugins.plan import Choice
from rlt_core.plugins.resolve import resolve

SHAPES = Path(__file__).parent.parent / "docs/shapes"
# loops, KV bytes of a position at that depth in bfloat16, as models' cards and servers give them
KNOWN = {
    "ouro-1.4b": (4, 768 << 10),
    "ouro-2.6b": (4, 1536 << 10),
    "nanbeige4.2-3b": (2, 176 << 10),
    "huginn-0125": (32, 132 * 2 * 5280 * 2),
}


def test_every_shape_is_known() -> None:
    """Guards the list below against a folder that nobody checks."""
    assert {folder.name for folder in SHAPES.iterdir() if folder.is_dir()} == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_a_shape_is_the_model_s(name: str) -> None:
    """Guards a benchmark of another model than it says: a layer, head or loop too many."""
    loops, kv_bytes = KNOWN[name]
    plan = resolve(Choice(model_path=str(SHAPES / name)))
    assert (plan.shape.loops, plan.dtype) == (loops, "bfloat16")
    found = sum(
        2 * 2 * track.num_layers * track.num_kv_heads * track.head_dim
        * (loops if track.per_depth else 1)
        for track in plan.shape.tracks
    )  # fmt: skip
    assert found == kv_bytes
