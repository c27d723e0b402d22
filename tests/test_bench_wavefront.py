"""`rlt bench wavefront` measures what it says: ticks, waits and tokens are checked, never times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rlt_core.bench.arrivals import Arrivals, Scene
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.subject import opened
from rlt_core.bench.wavefront import Mode, WavefrontBench, modes, setting_of
from rlt_core.cli import bench, main
from rlt_core.contract.errors import RltError
from rlt_core.plugins.registry import discover

GOLDEN = Path(__file__).parent / "golden" / "ouro_b"
CHUNKED, WAVEFRONT = Mode(name="chunked", chunk_size=4), Mode(name="wavefront", chunk_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a config.json alone."""
    made = tmp_path_factory.mktemp("shape")
    shutil.copy(GOLDEN / "config.json", made)
    return made


def test_one_prompt_takes_its_chunks_and_the_loops_once(folder: Path) -> None:
    """Guards the ticks of both modes at one budget, the waits that are counted, and the comparison
    of tokens."""
    setting = Setting(model=str(folder), random_weights=0, num_rows=16)
    made = WavefrontBench(setting, discover(), repeat=1)
    scene = Scene(decodes=2, context=3, quiet=3, prompts=1, prompt_len=22, every=0)
    chunked, grid = made.measure(scene, CHUNKED), made.measure(scene, WAVEFRONT)
    # 6 chunks, 4 loops: D ceil(P / C) and ceil(P / C) + D - 1, and the ticks in flight alike.
    assert chunked.ticks - 4 * 6 == grid.ticks - (6 + 3)
    assert 0 <= grid.ticks - (6 + 3) <= 2
    # Both decoding requests have a token in 4 ticks. The wait in which the prompt arrives is
    # counted, and so is the one in which its first token comes.
    assert chunked.num_waits == 2 * (chunked.ticks // 4 + 1)
    assert (chunked.budget, grid.budget) == (16, 16)
    assert made._tokens is not None
    made._tokens[2][0] += 1
    with pytest.raises(RltError, match="request 2 got other tokens"):
        made.measure(scene, WAVEFRONT)


def test_arrivals_one_after_the_other(folder: Path) -> None:
    """Guards --every: the second prompt comes later, and a strategy that guesses ends nobody
    before the prompts are done."""
    setting = Setting(model=str(folder), random_weights=0, num_rows=16, strategy="pipeline")
    scene = Scene(decodes=1, context=3, quiet=1, prompts=2, prompt_len=9, every=7)
    found = WavefrontBench(setting, discover(), repeat=1).measure(scene, WAVEFRONT)
    assert found.ticks >= 7 + 3 + 3
    assert found.ttft_ms.max / 1e3 < found.total_s.median


@pytest.mark.parametrize("strategy", ["pipeline", "adaptive"])
def test_requests_that_run_ahead_do_not_end_before_the_prompts(strategy: str) -> None:
    """Guards a long quiet stretch, in which some guess right and others do not."""
    setting = Setting(num_rows=16, strategy=strategy)
    scene = Scene(decodes=4, context=16, quiet=120, prompts=1, prompt_len=8, every=0)
    found = WavefrontBench(setting, discover(), repeat=1).measure(scene, WAVEFRONT)
    assert found.num_waits >= 4


def test_decoding_requests_begin_in_one_tick(folder: Path) -> None:
    """Guards modes against contexts of other lengths: with few prompt rows the first requests would
    decode for a long time until the last one's prompt is done, and longer in one mode."""
    setting = Setting(model=str(folder), random_weights=0, num_rows=4)
    scene = Scene(decodes=4, context=24, quiet=1, prompts=1, prompt_len=5, every=0)
    plan = check_setting(setting, discover())
    for mode in (CHUNKED, WAVEFRONT):
        lengths = scene.lengths(plan, mode.chunk_size, 4)
        with opened(setting_of(setting, mode), lengths, discover()) as subject:
            seen = Arrivals(subject, scene, mode.chunk_size).run()
        firsts = [min(token for i, token in seen.waits if i == request) for request in range(4)]
        assert firsts == firsts[:1] * 4


def test_waits_stand_beside_those_of_the_same_tokens_without_prompts(folder: Path) -> None:
    """Guards p99 against contexts that grow while prompts are there: the run without prompts has
    every token in which the other one waited for them, and no less room for it."""
    setting = Setting(model=str(folder), random_weights=0, num_rows=4)
    scene = Scene(decodes=3, context=9, quiet=2, prompts=2, prompt_len=14, every=3)
    plan = check_setting(setting, discover())
    for mode in (CHUNKED, Mode(name="chunked", chunk_size=2)):
        lengths = scene.lengths(plan, mode.chunk_size, 4)
        with opened(setting_of(setting, mode), lengths, discover()) as subject:
            alone = Arrivals(subject, scene, mode.chunk_size).alone()
            seen = Arrivals(subject, scene, mode.chunk_size).run()
        assert len(seen.waits) >= 3 * seen.ticks // 4 - 3
        assert set(seen.waits) <= set(alone), mode
        assert min(token for _, token in seen.waits) >= 2 + 2


def test_the_whole_budget_is_compared_too() -> None:
    """Guards chunked prompts against being measured only in the small chunks of a wavefront."""
    whole = Mode(name="chunked", chunk_size=16)
    assert modes(16, 4) == [whole, CHUNKED, WAVEFRONT]
    assert modes(4, 4) == [CHUNKED, WAVEFRONT]


@pytest.mark.slow
def test_lines_have_every_field(folder: Path) -> None:
    """Guards the JSON lines that docs/performance.md is made of."""
    app = typer.Typer()
    bench.register(app)
    sizes = "--decodes 1 --context 3 --prompts 1 --prompt-len 9 --max-num-tokens 8 --repeat 1"
    argv = ["bench", "wavefront", "--random-weights", str(folder), *sizes.split(), "--json"]
    result = CliRunner().invoke(app, argv)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    found = [line["results"] for line in lines]
    assert [(r["mode"], r["chunk_size"]) for r in found] == [
        ("chunked", 8),
        ("chunked", 2),
        ("wavefront", 2),
    ]
    assert lines[0]["bench"] == "wavefront"
    for r in found:
        assert (r["decodes"], r["prompts"], r["prompt_len"], r["budget"]) == (1, 1, 9, 8)
        assert r["p99_ratio"] == pytest.approx(r["p99_ms"] / r["quiet_p99_ms"])
        assert 0 < r["p50_ms"] <= r["p99_ms"]
        assert 0 < r["ttft_ms"]["median"] / 1e3 <= r["total_s"]["median"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--chunk-size", "65"], "--max-num-tokens"),
        (["--strategy", "refil"], "did you mean refill?"),
        (["--kv-layout", "shared"], "prompt_by_depth"),
        (["--prompt-len", "9000000"], "--prompt-len"),
        (["--draft-depth", "1"], "guesses no tokens"),
        (["--decodes", "0"], "--decodes"),
        (["ouro", "--random-weights", "."], "give one of them"),
    ],
)
def test_errors_are_short_and_give_exit_code_2(
    argv: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards users against a traceback, and against a wait before a refusal."""
    assert main(["bench", "wavefront", *argv]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 4
