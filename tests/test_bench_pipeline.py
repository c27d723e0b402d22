"""`rlt bench pipeline` measures what it says: guesses and ticks are checked, never time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from rlt_core.bench import subject as subject_module
from rlt_core.bench.pipeline import Load, PipelineBench, PipelineResult, setting_of
from rlt_core.bench.script import Script
from rlt_core.bench.setting import Setting
from rlt_core.cli import bench, main
from rlt_core.cli.bench_pipeline import table
from rlt_core.contract.errors import RltError
from rlt_core.plugins.registry import discover

GOLDEN = Path(__file__).parent / "golden" / "ouro_b"
SIZES = ("--context", "3", "--batch", "2", "--new-tokens", "6", "--repeat", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a config.json alone."""
    made = tmp_path_factory.mktemp("shape")
    shutil.copy(GOLDEN / "config.json", made)
    return made


def _run(*argv: str) -> Result:
    app = typer.Typer()
    bench.register(app)
    return CliRunner().invoke(app, ["bench", *argv])


def _measured(
    folder: Path, draft_depth: int | None, strategy: str, asked: tuple[float, ...]
) -> list[PipelineResult]:
    # Pages of 4: rows in flight cross their borders all the time.
    setting = Setting(
        model=str(folder), random_weights=0, page_size=4, num_rows=8, draft_depth=draft_depth
    )
    load = Load(context=5, new_tokens=18)
    made = PipelineBench(setting, load, discover(), repeat=1)
    (plain,) = made.measure("refill", asked, [2])
    assert (plain.token_ticks, plain.bound, plain.acceptance, plain.checked) == (4, 4, None, 0)
    return made.measure(strategy, asked, [2])


@pytest.mark.parametrize("strategy", ["pipeline", "adaptive"])
def test_scripted_guesses_give_the_ticks_of_the_bound(folder: Path, strategy: str) -> None:
    """Guards the script and the page reserve: with all guesses right a token comes in every tick,
    over the borders of pages too, and nothing is wasted; with none, refill's ticks."""
    right, wrong = _measured(folder, None, strategy, (1.0, 0.0))
    assert (right.acceptance, right.token_ticks, right.bound) == (1.0, 1.0, 1.0)
    assert (right.wasted, right.halts) == (0, 0)
    assert right.checked == 2 * (18 - 2)
    assert wrong.bound == 4
    assert wrong.token_ticks == 4
    if strategy == "pipeline":
        # The rows behind a wrong guess had taken 3, 2 and 1 loops.
        assert (wrong.acceptance, wrong.wasted) == (0.0, 6.0)
    assert [row[3] for row in table([right, wrong])[1:]] == ["1.00", "0.00"]


def test_deeper_drafts_have_their_own_bound(folder: Path) -> None:
    """Guards the bound's unit: at draft depth 2 right guesses give a token in two ticks."""
    (right,) = _measured(folder, 2, "pipeline", (1.0,))
    assert (right.token_ticks, right.bound, right.draft_depth) == (2.0, 2.0, 2)


def test_a_script_is_right_as_often_as_asked() -> None:
    """Guards acceptance: reproducible, nested (what is right at 0.4 is so at 0.8), never right by
    accident, and for the rows of a request wherever its slot is."""
    lines, found = [np.arange(4000) % 7, np.arange(4000) % 5], {}
    for asked in (0.4, 0.8):
        script = Script(2, 4000)
        script._table = torch.zeros(2, 4000, dtype=torch.int64)
        script.write(lines, asked, 7, seed=3)
        found[asked] = script._table.numpy() == np.stack(lines)
        assert abs(found[asked].mean() - asked) < 0.02
    assert not (found[0.4] & ~found[0.8]).any()
    assert (found[0.4][0] != found[0.4][1]).any()
    with pytest.raises(RltError, match="installed"):
        Script(1, 8).write([], 1.0, 7, seed=0)


@pytest.mark.slow
def test_lines_have_every_field(folder: Path) -> None:
    """Guards the JSON lines that docs/performance.md is made of."""
    shape = ("--random-weights", str(folder), "--strategy", "pipeline")
    result = _run("pipeline", *shape, *SIZES, "--acceptance", "1", "--json")
    assert result.exit_code == 0, result.output
    plain, guessing = [json.loads(line) for line in result.stdout.splitlines()]
    for line in (plain, guessing):
        assert line["bench"] == "pipeline"
        assert line["settings"]["random_weights"] == 0
        assert line["machine"]
        assert line["results"]["token_ms"]["median"] > 0
    found: dict[str, Any] = guessing["results"]
    assert plain["results"]["strategy"] == "refill"
    assert plain["results"]["speedup"] == 1
    assert (found["strategy"], found["asked"], found["acceptance"]) == ("pipeline", 1.0, 1.0)
    assert (found["token_ticks"], found["bound_ticks"], found["wasted"]) == (1, 1, 0)
    assert found["speedup"] == pytest.approx(found["refill_ms"] / found["token_ms"]["median"])
    assert (found["context"], found["batch"], found["draft_depth"]) == (3, 2, 1)


def test_the_models_own_acceptance_without_a_script(folder: Path) -> None:
    """Guards the table for people, and guesses that nobody replaced."""
    result = _run(
        "pipeline", "--random-weights", str(folder), *SIZES[:-1], "1", "--strategy", "pipeline"
    )
    assert result.exit_code == 0, result.output
    _, head, plain, guessing = result.stdout.splitlines()
    assert head.split()[:3] == ["context", "batch", "strategy"]
    assert plain.split()[2] == "refill"
    assert "its own" in guessing


def test_what_does_not_fit_is_skipped_from_the_largest_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a run over many batches against its largest one."""
    monkeypatch.setattr(subject_module, "free_bytes", lambda device: 1 << 10)
    result = _run("pipeline", "--random-weights", str(folder), *SIZES, "--batch", "1")
    assert result.stderr.count("skipped") == 2
    assert "batch 2, strategy refill: skipped" in result.stderr
    assert "GiB free" in str(result.exception)


def test_draft_depth_is_for_those_that_guess() -> None:
    """Guards refill, the base of every comparison, against a refusal of an option that is not
    meant for it."""
    setting = Setting(draft_depth=2)
    assert setting_of(setting, "refill", discover()).draft_depth is None
    assert setting_of(setting, "pipeline", discover()).draft_depth == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--strategy", "pipelin"], "did you mean pipeline?"),
        (["--strategy", "cohort", "--acceptance", "1"], "none of the strategies guesses"),
        (["--strategy", "refill", "--draft-depth", "1"], "none of the strategies guesses"),
        (["--acceptance", "1.5"], "--acceptance"),
        (["--draft-depth", "4"], "before its last loop"),
        (["--kv-layout", "shared"], "depths_apart"),
        (["--context", "9000000"], "the model has"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_errors_are_short_and_give_exit_code_2(
    argv: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards users against a traceback, and against a wait before a refusal."""
    assert main(["bench", "pipeline", *argv]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 4
