"""`rlt bench kernels` measures a model's own calls: what they are is checked, never their time."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
import typer
from torch import Tensor
from typer.testing import CliRunner

from rlt_core.bench.attention_rows import attention_launch
from rlt_core.bench.kernels import measure_kernel, row_counts, subjects
from rlt_core.bench.operator_calls import Call, record_calls
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.cli import bench
from rlt_core.contract.protocols import KVRows
from rlt_core.contract.specs import OpSpec
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import discover
from rlt_core.runtime.attention_torch import TorchAttention

GOLDEN = Path(__file__).parent / "golden"
# hidden 48, inner 128, 4 query and 2 KV heads of 12, 3 layers, vocabulary 144
LINEARS = {(96, 48), (48, 48), (48, 128), (1, 48)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a config.json alone."""
    made = tmp_path_factory.mktemp("shape")
    shutil.copy(GOLDEN / "ouro_b" / "config.json", made)
    return made


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return check_setting(Setting(model=str(folder)), discover())


def _of(calls: Counter[Call], op: str) -> Counter[Call]:
    return Counter({call: num for call, num in calls.items() if call.op == op})


@pytest.mark.slow
def test_the_calls_are_the_model_s(plan: Plan) -> None:
    """A shape that is missing is a kernel that nobody looks at; the counts say what it weighs."""
    calls = record_calls(plan)
    layers = plan.shape.tracks[0].num_layers
    linears = _of(calls["loop"], "linear")
    assert {call.weights[0] for call in linears} == LINEARS
    assert sum(linears.values()) == 3 * layers + 1
    (gated,) = _of(calls["loop"], "linear_silu_mul")
    assert (gated.weights, calls["loop"][gated]) == (((256, 48),), layers)
    assert sum(_of(calls["loop"], "norm_add_norm").values()) == 2 * layers
    (attend,) = _of(calls["loop"], "attend")
    assert attend.rows == ((4, 12), (2, 12), (2, 12))
    assert attend.rope is not None
    assert [call.label() for call in calls["head"]] == ["144 x 48"]
    (embed,) = calls["prelude"]
    assert embed.op == "embed"
    assert calls["coda"] == Counter()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["huginn", "nanbeige"])
def test_other_models_are_recorded_without_weights(model: str) -> None:
    """Start states, options and norms of queries must not need a device with memory."""
    named = next(path for path in sorted(GOLDEN.iterdir()) if path.name.startswith(model))
    calls = record_calls(check_setting(Setting(model=str(named)), discover()))
    assert _of(calls["loop"], "attend")
    assert _of(calls["head"], "linear")


def test_every_candidate_or_the_plan_s(plan: Plan) -> None:
    """--all must not offer what the device cannot run."""
    registry = discover()
    chosen = subjects(plan, registry, every=False)
    assert {s.spec.id for s in chosen if isinstance(s.spec, OpSpec)} <= {
        spec.id for spec in plan.ops.values()
    }
    assert {s.spec.id for s in chosen if not isinstance(s.spec, OpSpec)} == {"torch"}
    every = subjects(plan, registry, every=True)
    assert {s.call for s in every} == {s.call for s in chosen}
    assert all("cpu" in s.spec.devices for s in every)
    head = next(s for s in chosen if s.part == "head")
    assert row_counts(head, (1, 256, 2048)) == [1, 256]


def test_bytes_and_operations(plan: Plan) -> None:
    """A share of the ceiling is worth what its numerator is: float32, 3 rows, 130 positions."""
    found = {}
    for subject in subjects(plan, discover(), every=False):
        result = measure_kernel(subject, plan, 3, 130)
        assert result.micros > 0
        found[result.op, result.shape] = (result.num_bytes, result.operations)
    assert found["linear", "96 x 48"] == (4 * (96 * 48 + 3 * 48 + 3 * 96), 2 * 3 * 96 * 48)
    gated = 4 * (256 * 48 + 3 * 48 + 3 * 128)
    assert found["linear_silu_mul", "256 x 48"] == (gated, 2 * 3 * 256 * 48)
    assert found["norm_add_norm", "48"] == (4 * (4 * 3 * 48 + 2 * 48), 0)
    assert found["embed", "144 x 48"] == (3 * (2 * 48 * 4 + 8), 0)
    kv, own = 2 * 3 * 130 * 2 * 12, 2 * 3 * 4 * 12
    assert found["attend", "4 heads, 2 KV heads of 12"] == (4 * (kv + own), 4 * 3 * 130 * 4 * 12)


@pytest.mark.parametrize("prompt", [False, True])
def test_attention_sees_all_positions(plan: Plan, prompt: bool) -> None:
    """Pages shared by two requests, or rows that see fewer keys, would be faster than the truth."""
    seen = []

    class Watching(TorchAttention):
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: KVRows, scale: float) -> Tensor:
            out = super().__call__(q, k, v, rows, scale)
            seen.append((rows, out))
            return out

    (call,) = _of(record_calls(plan)["loop"], "attend")
    launch = attention_launch(
        Watching(), call, plan, requests=1 if prompt else 3, keys=140, prompt=prompt, layers=2
    )
    launch(0)
    launch(1)
    rows, out = seen[1]
    assert rows.unit == 1
    assert not out.isnan().any()
    if prompt:
        assert torch.equal(rows.key_len[:-1], torch.arange(140) + 1)
    else:
        assert rows.key_len[:-1].tolist() == [140] * 3
        assert len(rows.tile_pages.unique()) == rows.tile_pages.numel()


@pytest.mark.slow
def test_the_command_prints_a_line_a_kernel(folder: Path) -> None:
    """Guards the JSON lines: machine, versions, both ceilings, and one result each."""
    app = typer.Typer()
    bench.register(app)
    argv = ["bench", "kernels", str(folder), "--rows", "2", "--context", "20"]
    result = CliRunner().invoke(app, [*argv, "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len({(line["results"]["id"], line["results"]["shape"]) for line in lines}) == len(lines)
    assert {line["results"]["op"] for line in lines} >= {"embed", "linear", "attend"}
    for line in lines:
        assert line["machine"]
        assert "torch" in line["versions"]
        assert line["settings"]["reads_bytes_per_s"] > 0
        assert line["settings"]["products_per_s"] > 0
    shown = CliRunner().invoke(app, argv)
    assert "of products" in shown.stdout
    assert "attention torch" in shown.stdout
