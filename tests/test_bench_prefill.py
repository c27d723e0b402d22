"""`rlt bench prefill` measures what it says: prompts, ticks and operations, never times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from rlt_core.bench import prefill as bench_prefill
from rlt_core.bench.prefill import Prompts, Work, measure_prefill
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.cli import bench, main
from rlt_core.cli.bench_prefill import grid
from rlt_core.plugins.registry import discover

GOLDEN = Path(__file__).parent / "golden"
OURO = Setting(model=str(GOLDEN / "ouro_b"), num_rows=16)


def test_every_run_has_new_prompts_and_all_its_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against prompts that a cache may serve in the second run, a run that is not whole,
    and a tick that is not counted."""
    seen: list[Any] = []
    inner = bench_prefill._run

    def run(subject: Any, prompts: Any) -> Any:
        seen.append(np.stack(prompts))
        return inner(subject, prompts)

    monkeypatch.setattr(bench_prefill, "_run", run)
    # 3 prompts of 16 rows, one at a time in 16 places: 4 loops each, and the ticks in flight
    found = measure_prefill(OURO, Prompts(count=3, length=16), discover(), rate=1e9, repeat=2)
    assert [part.shape for part in seen] == [(3, 16)] * 3  # a warm-up and two
    rows = {row.tobytes() for part in seen for row in part}
    assert len(rows) == 9
    assert 12 <= found.ticks <= 14
    assert (found.num_rows, found.halts) == (16, 0)
    assert found.tokens_per_s == pytest.approx(48 / found.seconds.median)
    assert found.share == pytest.approx(found.work.products / found.seconds.median / 1e9)


@pytest.mark.parametrize("name", ["ouro_b", "huginn_a"])
def test_operations_are_those_of_the_weights(name: str) -> None:
    """Guards the ceiling against a part that is left out or counted in every loop."""
    plan = check_setting(replace(OURO, model=str(GOLDEN / name)), discover())
    work = Work.of(plan, Prompts(count=2, length=5))
    c: Any = plan.shape.config
    loops, places = plan.shape.loops, 10
    if name == "ouro_b":
        size, inner, heads = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim
        qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim * size
        loop = c.num_layers * (qkv + heads * size + 3 * inner * size) + size  # and the gate
        weights, head = loops * loop, c.vocab_size * size
        layers = loops * c.num_layers
        assert work.products == 2 * (places * weights + 2 * head)
        # pairs of a position and one that it sees: 2 x (1 + ... + 5)
        assert work.attention == 4 * 30 * layers * heads
    else:
        more = Work.of(replace_loops(plan, loops + 1), Prompts(count=2, length=5))
        once = work.products - loops * (more.products - work.products)
        layer = 4 * c.n_embd**2 + 3 * c.n_embd * c.intermediate_size
        boundary = (c.prelude_layers + c.coda_layers) * layer
        assert once == 2 * (places * boundary + 2 * c.vocab_size * c.n_embd)


def replace_loops(plan: Any, loops: int) -> Any:
    """The plan of a model that loops more often."""
    return replace(plan, shape=replace(plan.shape, loops=loops))


def test_grids() -> None:
    """Guards a length or a number of prompts that is given alone."""
    assert [(p.count, p.length) for p in grid(None, None, on_gpu=True)] == [
        (32, 1024),
        (1, 1024),
        (8, 4096),
    ]
    found = grid([2, 3], None, on_gpu=False)
    assert [(p.count, p.length) for p in found] == [(2, 64), (3, 64)]
    found = grid([2], [5, 7], on_gpu=False)
    assert [(p.count, p.length) for p in found] == [(2, 5), (2, 7)]


def test_lines_have_every_field() -> None:
    """Guards the JSON lines that docs/performance.md is made of."""
    app = typer.Typer()
    bench.register(app)
    sizes = "--prompts 2 --prompt-len 9 --max-num-tokens 8 --chunk-size 4 --repeat 1 --json"
    folder = str(GOLDEN / "ouro_b")
    argv = ["bench", "prefill", "--random-weights", folder, *sizes.split()]
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, result.output
    (line,) = [json.loads(text) for text in result.stdout.splitlines()]
    r = line["results"]
    assert (line["bench"], line["settings"]["prompts"]) == ("prefill", "chunked")
    assert (r["prompts"], r["prompt_len"], r["num_rows"]) == (2, 9, 8)
    assert r["chunk_size"] == 4
    assert r["operations_per_s"] == pytest.approx(r["product_operations"] / r["seconds"]["median"])
    assert r["ceiling_operations_per_s"] > 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--prompt-len", "9000000"], "--prompt-len"),
        (["--prompts", "0"], "--prompts"),
        (["--chunk-size", "9", "--max-num-tokens", "8"], "--chunk-size"),
        (["--prompt-mode", "chunkd"], "did you mean chunked?"),
    ],
)
def test_errors_are_short_and_give_exit_code_2(
    argv: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards users against a traceback."""
    assert main(["bench", "prefill", *argv]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 4
