"""`rlt bench decode` and `rlt bench depth` measure what they say: what windows contain is checked,
never their time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from rlt_core.bench import decode as decode_module
from rlt_core.bench import depth as depth_module
from rlt_core.bench import depth_runs
from rlt_core.bench import subject as subject_module
from rlt_core.bench.crowd import Crowd, Window
from rlt_core.bench.decode import Point, measure_decode
from rlt_core.bench.depth_runs import Load, Run, Runs, resident_lengths
from rlt_core.bench.depths import Full, Synthetic
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.subject import Subject, opened
from rlt_core.cli import bench, main
from rlt_core.cli.bench_decode import grid
from rlt_core.plugins.registry import discover
from rlt_core.schedule.request import EngineRequest

GOLDEN = Path(__file__).parent / "golden" / "ouro_b"
LOAD = Load(context=5, width=4, new_tokens=3)
GATE = Run(Synthetic(name="gate", seed=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a config.json alone."""
    made = tmp_path_factory.mktemp("shape")
    shutil.copy(GOLDEN / "config.json", made)
    return made


@pytest.fixture(scope="module")
def subject(folder: Path) -> Iterator[Subject]:
    """A refill engine with room for both runs; prompts come one after the other."""
    setting = Setting(model=str(folder), random_weights=0, exit_policy="trace", num_rows=5)
    plan = check_setting(setting, discover())
    lengths = resident_lengths(plan, LOAD, [GATE, Run(Full(spread=True))])
    with opened(setting, lengths, discover()) as found:
        yield found


def _run(*argv: str) -> Result:
    app = typer.Typer()
    bench.register(app)
    return CliRunner().invoke(app, ["bench", *argv])


def _line(*argv: str) -> dict[str, Any]:
    result = _run(*argv, "--json")
    assert result.exit_code == 0, result.output
    (line,) = [json.loads(line) for line in result.stdout.splitlines()]
    for name in ("machine", "versions", "settings", "results"):
        assert line[name], name
    assert "torch" in line["versions"]
    assert "rlt-core" in line["versions"]
    assert line["settings"]["random_weights"] == 0
    found: dict[str, Any] = line["results"]
    return found


def test_no_row_decodes_before_all_prompts_are_done(subject: Subject) -> None:
    """Guards "context C": rows that start early are further on when the window begins."""
    prompts = [np.arange(5) for _ in range(4)]
    requests = [
        EngineRequest(request_id=i, prompt=p, max_tokens=9, loops=4, max_loops=4, use_policy=False)
        for i, p in enumerate(prompts)
    ]
    with Crowd(subject, requests) as crowd:
        assert crowd.prompts() > 0
        assert crowd.made.tolist() == [1, 1, 1, 1]
        window = crowd.advance()
        assert crowd.made.tolist() == [9, 9, 9, 9]
    assert (window.tokens, window.depth, window.halts) == (32, 4.0, 0)
    assert window.ticks == 32
    assert window.token_ms(4) == pytest.approx(window.seconds / 8 * 1e3)


@pytest.mark.parametrize("run", [GATE, Run(Full(spread=True))])
def test_a_window_holds_the_tokens_of_its_ticks(subject: Subject, run: Run) -> None:
    """Guards the count: nobody arrives, ends or parks, and every row leaves at its own depth."""
    window = Runs(subject, LOAD, in_step=False).measure(run)
    plan, ticks = subject.plan, run.window_ticks(subject.plan, LOAD)
    assert (window.ticks, window.halts) == (ticks, 0)
    depths = [
        d
        for trace in run.traces(plan, LOAD)
        for d, at in zip(trace[1:], np.cumsum(trace[1:]), strict=True)
        if 16 < at <= 16 + ticks
    ]
    assert window.tokens == len(depths)
    assert window.depth == pytest.approx(float(np.mean(depths)))


@pytest.mark.slow
def test_decode_gives_its_fields_and_depends_on_no_download(folder: Path) -> None:
    """Guards the JSON line that docs/performance.md is made of, and the tokens of a window."""
    sizes = ("--context", "8", "--batch", "2", "--new-tokens", "3", "--repeat", "1")
    found = _line("decode", "--random-weights", str(folder), *sizes)
    assert (found["context"], found["batch"], found["new_tokens"]) == (8, 2, 3)
    assert found["ticks"] == 2 * 4
    assert found["halts"] == 0
    assert found["tokens_per_s"] == pytest.approx(2 / found["token_ms"]["median"] * 1e3)
    assert found["floor_ms"] == pytest.approx(
        found["moved_bytes"] / found["read_bytes_per_s"] * 1e3
    )
    assert found["ratio"] == pytest.approx(found["token_ms"]["median"] / found["floor_ms"])
    assert 0 < found["host_share"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("has_one_loop", [True, False])
def test_depth_gives_its_fields(
    folder: Path, has_one_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the speed-up against another base than fixed depth, and its share of the bound; also
    for a model that always takes its own loops, whose boundary is measured by exits at depth 1."""
    monkeypatch.setattr(depth_module, "has_one_loop", lambda plan: has_one_loop)
    monkeypatch.setattr(depth_runs, "WARM_ROUNDS", 0)
    sizes = ("--context", "4", "--width", "2", "--new-tokens", "2", "--repeat", "1")
    found = _line("depth", "--random-weights", str(folder), "--distribution", "gate", *sizes)
    fixed, refill = found["fixed_ms"]["median"], found["refill_ms"]["median"]
    assert found["depths"] == "gate"
    assert found["speedup"] == pytest.approx(fixed / refill)
    assert found["cohort_speedup"] == pytest.approx(fixed / found["cohort_ms"]["median"])
    boundary, mean = found["boundary_loops"], found["mean_depth"]
    assert found["bound"] == pytest.approx((boundary + 4) / (boundary + mean))
    assert found["share_of_bound"] == pytest.approx(found["speedup"] / found["bound"])
    assert 1 <= mean <= 4


def test_depth_refuses_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second context was refused after the first had been measured for 20 minutes; and by
    itself the command had one that the demo model does not hold."""
    measured: list[object] = []

    def measure(bench: object, load: object, sources: object) -> list[object]:
        measured.append(load)
        return []

    monkeypatch.setattr(depth_module.DepthBench, "measure", measure)
    assert main(["bench", "depth", "--context", "4", "--context", "9000000", "--width", "1"]) == 2
    assert measured == []
    assert main(["bench", "depth"]) == 0
    assert len(measured) == 2


@pytest.mark.slow
def test_no_exit_compares_refill_with_cohort(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the sign of the overhead; the table is what people read."""
    monkeypatch.setattr(depth_runs, "WARM_ROUNDS", 0)
    sizes = ("--context", "4", "--width", "2", "--new-tokens", "1", "--repeat", "1", "--no-exit")
    result = _run("depth", "--random-weights", str(folder), *sizes)
    assert result.exit_code == 0, result.output
    heading, head, row = result.stdout.splitlines()
    assert "ouro" in heading
    assert "random weights, 4 loops" in heading
    assert head.split()[:3] == ["context", "width", "cohort"]
    cohort, together, _ = [float(cell.split()[0]) for cell in row.split("  ") if "to" in cell]
    assert row.count("%") == 2
    over = next(cell for cell in row.split() if cell.endswith("%"))
    assert float(over[:-1]) == pytest.approx((together / cohort - 1) * 100, abs=0.5)


def test_the_default_grid_fits_the_demo() -> None:
    """`rlt bench decode` alone was refused on a CPU: the demo has fewer positions than the grid."""
    assert {(point.context, point.batch) for point in grid(None, None, 128, on_gpu=False)} == {
        (64, 1),
        (64, 8),
    }
    assert len(grid(None, None, 128, on_gpu=True)) == 8
    assert len(grid([16], None, 128, on_gpu=False)) == 2


def test_what_does_not_fit_is_skipped_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a grid against its largest point; a grid of which nothing fits is an error."""
    monkeypatch.setattr(subject_module, "free_bytes", lambda device: 1 << 10)
    sizes = ("--context", "8", "--batch", "1", "--new-tokens", "2")
    result = _run("decode", "--random-weights", str(folder), *sizes)
    assert "context 8, batch 1: skipped" in result.stderr
    assert "GiB free" in str(result.exception)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["decode", "ouro", "--random-weights", "."], "give one of them"),
        (["decode", "--random-weights", "ouro"], "there is no such folder"),
        (["decode", "--strategy", "refil"], "did you mean refill?"),
        (["decode", "--device", "cuda:9", "--exact", "off"], "CUDA devices on this machine"),
        (["decode", "--profile", "--context", "8"], "--device cuda"),
        (["decode", "--context", "9000000"], "the model has"),
        (["depth", "--context", "9000000", "--width", "1"], "the model has"),
        (["depth", "--no-exit", "--distribution", "gate"], "--no-exit runs no exits"),
        (["decode", "--seed", str(2**63)], "--seed"),
        (["serve", "--warm-up", "0", "--num-requests", "2", "--exit-threshold", "2"], "threshold"),
        (["serve", "--url", "http://127.0.0.1:9", "--strategy", "cohort"], "leave out --strategy"),
        (["serve", "--url", "http://127.0.0.1:9", "--device", "cuda"], "leave out --device"),
        (["decode", "--graphs"], "--graphs"),
        (["serve", "--graphs"], "--graphs"),
        (["serve", "--plot", "nosuch/x.svg"], "the folder nosuch is not there"),
        (["trace", "nosuch/x.json"], "the folder nosuch is not there"),
        (["decode", "--op", "linear"], "rlt plugins --ops"),
        (["wavefront", "--context", "9999"], "--context 9999"),
        (["host", "--seed", "-1"], "--seed"),
        (["decode", "--random-weights", "a" * 300], "there is no such folder"),
        (["depth", "--depths", "missing.jsonl"], "cannot be read"),
        (["depth", "--distribution", "flat"], "gate"),
        (["decode", "--new-tokens", "1"], "--new-tokens"),
    ],
)
def test_errors_are_short_and_give_exit_code_2(
    argv: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards users against a traceback, and against a wait before a refusal."""
    assert main(["bench", *argv]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 4


def test_idle_compares_the_same_ticks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against KV that grew: later ticks read more, and would look like time without work."""
    seen: list[tuple[list[int], Window]] = []
    advance = Crowd.advance

    def busy(run: Callable[[], object]) -> float:
        run()
        return seen[-3][1].seconds / 4

    def noted(crowd: Crowd, ticks: int | None = None) -> Window:
        before = crowd.made.tolist()
        window = advance(crowd, ticks)
        seen.append((before, window))
        return window

    monkeypatch.setattr(Crowd, "advance", noted)
    monkeypatch.setattr(decode_module, "busy_seconds", busy)
    setting = Setting(model=str(folder), random_weights=0)
    point = Point(context=8, batch=2, new_tokens=12)
    found = measure_decode(setting, point, discover(), bandwidth=1e10, repeat=1, profiled=True)
    (before, profiled), (same, plain) = seen[-1], seen[-3]
    assert (before, profiled.ticks) == (same, plain.ticks)
    assert found.gpu_idle == pytest.approx(0.75)


@pytest.mark.gpu
def test_decode_on_a_gpu_profiles(folder: Path) -> None:
    """Guards the parts that a CPU never runs: events, the second bandwidth reader, the profiler."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    sizes = ("--context", "8", "--batch", "2", "--new-tokens", "8", "--repeat", "1", "--profile")
    shape = ("--random-weights", str(folder), "--device", "cuda", "--dtype", "bfloat16")
    found = _line("decode", *shape, *sizes)
    assert 0 <= found["gpu_idle"] < 1
    assert found["read_bytes_per_s"] > 1e10
