"""docs/performance.md is made of what the benchmarks print: fields, peers, points left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs import performance, speed
from docs.performance_lines import MISSING
from rlt_core.bench.answers import Summary
from rlt_core.bench.arrivals import Scene
from rlt_core.bench.boundary import Boundary
from rlt_core.bench.decode import DecodeResult, Point
from rlt_core.bench.depth import DepthResult, NoExitResult
from rlt_core.bench.depth_runs import Load
from rlt_core.bench.pipeline import PipelineResult
from rlt_core.bench.prefill import PrefillResult, Prompts, Work
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.spread import Spread
from rlt_core.bench.wavefront import Mode, WavefrontResult
from rlt_core.cli.bench_decode import table as decode_table
from rlt_core.cli.bench_depth import table as depth_table
from rlt_core.cli.bench_pipeline import table as pipeline_table
from rlt_core.cli.bench_prefill import table as prefill_table
from rlt_core.cli.bench_record import Recorder
from rlt_core.cli.bench_wavefront import table as wavefront_table
from rlt_core.contract.errors import CapacityError
from rlt_core.plugins.registry import discover

ONE, TWO = Spread.of([0.9, 1.0, 1.25]), Spread.of([2.0])
DECODE = DecodeResult(
    point=Point(context=8, batch=2, new_tokens=4),
    token_ms=TWO,
    prompt_s=ONE,
    tokens_per_s=1000.0,
    moved_bytes=1e9,
    bandwidth=1e12,
    host_share=0.25,
    halts=0,
    ticks=12,
    gpu_idle=0.015,
)
LOAD = Load(context=8, width=2, new_tokens=4)
DEPTH = DepthResult(
    load=LOAD,
    depths="gate",
    mean_depth=2.0,
    fixed_by="cohort",
    fixed_ms=TWO,
    cohort_ms=TWO,
    refill_ms=ONE,
    boundary=Boundary(loop_ms=0.5, boundary_ms=0.0),
    bound=2.0,
    halts=0,
)
PREFILL = PrefillResult(
    chunk_size=2048,
    prompts=Prompts(count=2, length=8),
    num_rows=16,
    seconds=TWO,
    work=Work(products=4e12, attention=1e9),
    rate=8e12,
    ticks=6,
    halts=0,
)
NO_EXIT = NoExitResult(load=LOAD, cohort_ms=ONE, together_ms=ONE, spread_ms=TWO, halts=0)

PIPELINE = PipelineResult(
    context=8,
    batch=2,
    new_tokens=4,
    loops=4,
    strategy="pipeline",
    draft_depth=1,
    asked=0.8,
    token_ms=ONE,
    token_ticks=1.75,
    acceptance=0.75,
    wasted=1.5,
    checked=100,
    halts=0,
    refill_ms=2.0,
)
WAVEFRONT = WavefrontResult(
    scene=Scene(decodes=4, context=8, quiet=3, prompts=2, prompt_len=96, every=0),
    mode=Mode(name="wavefront", chunk_size=16),
    budget=64,
    ttft_ms=TWO,
    p50_ms=1.0,
    p99_ms=3.0,
    quiet_p50_ms=1.25,
    quiet_p99_ms=1.5,
    num_waits=77,
    total_s=ONE,
    ticks=14,
)
SERVE = Summary(
    details={},
    num_requests=9,
    num_answered=8,
    seconds=4.0,
    late_s=0.0,
    errors={"timeout": 1},
    times={
        f"{name}_ms": {"p50": value, "p90": 2 * value, "p99": 2.5 * value}
        for name, value in (("ttft", 20.0), ("tpot", 5.0), ("itl", 4.0), ("e2e", 1000.0))
    },
    prompt_tokens=100,
    tokens=4800,
    num_good=8,
    mean_depth=2.375,
)


@pytest.fixture
def records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with what the commands print with --json."""
    registry, setting = discover(), Setting()
    plan = check_setting(setting, registry)
    for bench, result in (
        ("decode", DECODE),
        ("prefill", PREFILL),
        ("depth", DEPTH),
        ("no-exit", NO_EXIT),
        ("pipeline", PIPELINE),
        ("wavefront", WAVEFRONT),
        ("serve", SERVE),
    ):
        given = {"strategy": "refill"} if bench == "decode" else {}
        recorder = Recorder.of(bench, setting, plan, registry, given, as_json=True)
        recorder.add(result.as_dict())
        where = {"context": 9, "batch": 3, "width": 3, "strategy": "pipeline"}
        where |= {"mode": "wavefront", "chunk_size": 16, "prompts": 3, "prompt_len": 9}
        recorder.skip(where, CapacityError("too big\nFix: none"))
        lines = capsys.readouterr().out.splitlines()
        (tmp_path / f"performance-{bench}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def _rows(text: str) -> list[list[str]]:
    """The cells of every table row that is no head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if line[2].isdigit()]


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    """Guards the page of a fresh clone."""
    assert performance.decode(tmp_path) == MISSING == performance.depth(tmp_path)
    assert performance.prefill(tmp_path) == MISSING
    assert performance.no_exit(tmp_path) == MISSING == performance.pipeline(tmp_path)
    assert performance.wavefront(tmp_path) == MISSING == performance.serve(tmp_path)


def test_decode_stands_beside_peers_of_its_shape_and_gpu(records: Path) -> None:
    """Guards a comparison with another shape, another GPU or another batch."""
    line = json.loads((records / "performance-decode.jsonl").read_text().splitlines()[0])
    gpu = line["machine"] | {"gpu": "X", "driver": "1"}
    (records / "performance-decode.jsonl").write_text(json.dumps(line | {"machine": gpu}) + "\n")
    peers = [
        {"bench": "peer", "engine": engine, "machine": {"gpu": name}, "settings": line["settings"]}
        | {"results": {"context": 8, "batch": batch, "token_ms": 4.5}}
        for engine, name, batch in (("same", "X", 2), ("far", "Y", 2), ("other", "X", 3))
    ]
    text = "\n".join(map(json.dumps, peers))
    (records / "performance-peers.jsonl").write_text(text)
    page = performance.decode(records)
    (row,) = _rows(page)
    assert row[:5] == ["8", "2", "2.00 (2.00 to 2.00)", "4.50", ""]
    assert row[5:] == ["1,000", "1.00", "2.00", "1.00 (0.90 to 1.25)", "25%", "1.5%"]
    assert "far" not in page
    assert "strategy `refill`" in page
    assert line["command"] in page


def test_the_table_of_speed_compares_what_is_comparable(records: Path) -> None:
    """Guards the README: another shape, what is not exact, an older engine, a place of one only."""
    files = {name: records / f"performance-{name}.jsonl" for name in ("decode", "depth")}
    decode = json.loads(files["decode"].read_text().splitlines()[0])
    slower = decode["results"] | {"token_ms": {"median": 9.0}}
    inexact = decode | {"settings": decode["settings"] | {"exact": False}, "results": slower}
    other = decode | {"settings": decode["settings"] | {"folder": "x"}, "results": slower}
    files["decode"].write_text("\n".join(map(json.dumps, (decode, inexact, other))))
    peers = [
        {"bench": "peer", "engine": engine, "machine": decode["machine"]}
        | {"settings": decode["settings"]}
        | {"results": {"context": 8, "batch": batch, "token_ms": ms}}
        for engine, batch, ms in (("old", 2, 7.0), ("new", 2, 4.5), ("new", 5, 6.0))
    ]
    (records / "performance-peers.jsonl").write_text("\n".join(map(json.dumps, peers)))
    page = speed.decode(records)
    assert _rows(page) == [["2", "8", "4.50", "2.00", "1.00", "2.0"]]
    assert "| new, ms |" in page
    files["depth"].unlink()
    assert _rows(speed.decode(records)) == [["2", "8", "4.50", "2.00"]]
    (records / "performance-peers.jsonl").unlink()
    assert speed.decode(records) == MISSING


def test_the_largest_family_of_operators_has_one_name(records: Path) -> None:
    """Guards the line above a table: what is no part of the family is named."""
    file = records / "performance-decode.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    ops = {name: f"here.{name}" for name in "abcd"} | {"e": "there.e"}
    for given, wanted in ((ops, "`here.*`, `there.e`"), ({"a": "here.a"}, "`here.a`")):
        changed = line | {"settings": line["settings"] | {"ops": given}}
        file.write_text(json.dumps(changed))
        assert f"operators {wanted}, pages" in performance.decode(records)


def test_prefill_stands_beside_peers_of_its_prompts(records: Path) -> None:
    """Guards seconds against milliseconds, and the share of the ceiling."""
    file = records / "performance-prefill.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    peers = [
        {"bench": "peer", "engine": "same", "machine": line["machine"]}
        | {"settings": line["settings"], "results": {"context": 8, "batch": batch, "prompt_s": s}}
        for batch, s in ((2, 4.5), (3, 7.0))
    ]
    (records / "performance-peers.jsonl").write_text("\n".join(map(json.dumps, peers)))
    (row, left_out) = _rows(performance.prefill(records))
    assert row[:5] == ["2", "8", "16", "2.000 (2.000 to 2.000)", "4.500"]
    assert row[5:] == ["8", "4", "2", "25.0%", "6"]
    assert left_out[:3] == ["3", "9", "does not fit: too big"]


def test_depth_and_no_exit_rows(records: Path) -> None:
    """Guards the columns against each other's values, and points that did not fit."""
    (row, left_out) = _rows(performance.depth(records))
    assert row[2:5] == ["gate", "2.00", "2.00 (2.00 to 2.00) (cohort)"]
    assert row[7:] == ["0.00", "2.000", "2.000", "100.0%", "1.000"]
    assert left_out[:3] == ["9", "3", "does not fit: too big"]
    assert [row[2] for row in _rows(performance.decode(records))] == [
        "2.00 (2.00 to 2.00)",
        "does not fit: too big",
    ]
    assert performance.decode(records).count("```sh") == 1
    (row, _) = _rows(performance.no_exit(records))
    assert (row[4], row[6]) == ("+0.0%", "+100.0%")


def test_pipeline_and_wavefront_rows(records: Path) -> None:
    """Guards the bound, the speed-up and the ratio, and columns against each other's values."""
    (row, left_out) = _rows(performance.pipeline(records))
    assert row[2:6] == ["pipeline", "1", "0.80", "0.750"]
    assert row[6:] == ["1.00 (0.90 to 1.25)", "1.750", "1.750", "2.00", "1.50"]
    assert left_out[:4] == ["9", "3", "pipeline", "does not fit: too big"]
    (row,) = _rows(performance.wavefront(records))
    assert row[:6] == ["4", "2 x 96", "wavefront", "16", "64", "2.00 (2.00 to 2.00)"]
    assert row[6:] == ["1.00", "3.00", "1.50", "2.00", "1.00 (0.90 to 1.25)", "14"]
    assert "does not fit: too big" in performance.wavefront(records)


def test_loads_on_one_engine_share_a_table(records: Path) -> None:
    """Guards quantiles against each other's, and rates and depths that only a column tells."""
    file = records / "performance-serve.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    line["results"] = SERVE.as_dict()
    same = line["settings"] | {"lengths": "alpaca"}
    given = ({"depths": "gate", "rate": 8.0}, {"depths": None, "rate": 16.5})
    loads = [line | {"settings": same | one} for one in given]
    file.write_text("\n".join(map(json.dumps, loads)))
    page = performance.serve(records)
    assert page.count("```sh") == 1
    lines = [text.strip("| ").split(" | ") for text in page.splitlines() if "| alpaca" in text]
    assert lines[1][:4] == ["alpaca", "its own", "16.5", "8 of 9"]
    assert lines[0][:6] == ["alpaca", "gate", "8", "8 of 9", "2.38", "20.0 / 40.0 / 50.0"]
    assert lines[0][6:8] == ["5.00 / 10.00 / 12.50", "4.00 / 8.00 / 10.00"]
    assert lines[0][8:] == ["2.50", "1.00 / 2.00 / 2.50", "1,200"]


def test_tables_for_people_have_a_cell_per_head() -> None:
    """Guards columns that shift against their heads."""
    for rows in (
        decode_table([DECODE]),
        prefill_table([PREFILL]),
        depth_table([DEPTH]),
        depth_table([NO_EXIT]),
        pipeline_table([PIPELINE]),
        wavefront_table([WAVEFRONT]),
    ):
        assert len({len(row) for row in rows}) == 1
        assert len(rows) == 2
    assert "1.5%" in decode_table([DECODE])[1]
