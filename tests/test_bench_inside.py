"""`rlt bench trace` and `rlt bench profile`: what they tell of a short load is what ran."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from rlt_core.bench.gpu_idle import device_events
from rlt_core.bench.profile import Profiled, costliest
from rlt_core.cli import bench
from rlt_core.contract.errors import RltError

LOAD = ("--num-requests", "3", "--context", "5", "--new-tokens", "4")


def _run(*argv: str) -> Result:
    app = typer.Typer()
    bench.register(app)
    return CliRunner().invoke(app, ["bench", *argv])


def test_a_trace_has_every_loop_of_every_row(tmp_path: Path) -> None:
    """Guards a trace that loses rows, gives them wrong depths, or overlaps on a track: at full
    depth each of 3 requests runs 4 loops for its prompt's cell and for each of its 3 later tokens,
    one a tick."""
    path = tmp_path / "trace.json"
    result = _run("trace", str(path), *LOAD, "--depths", "full")
    assert result.exit_code == 0, result.output
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    rows = [event for event in slices if event["tid"]]
    counts = Counter((event["name"], event["args"]["kind"]) for event in rows)
    assert counts == {
        **{(f"depth {d}", "prompt"): 3 for d in (1, 2, 3, 4)},
        **{(f"depth {d}", "decode"): 9 for d in (1, 2, 3, 4)},
    }
    assert len({event["cname"] for event in rows}) == 4
    for track in {event["tid"] for event in slices}:
        end = 0.0
        for event in (one for one in slices if one["tid"] == track):
            assert event["ts"] >= end - 1e-6
            end = event["ts"] + event["dur"]
    ticks = {event["name"]: event["args"] for event in slices if not event["tid"]}
    for name, args in ticks.items():
        number = int(name.split()[1])
        here = [event for event in rows if event["args"]["tick"] == number]
        assert args["rows"] == sum(event["args"]["rows"] for event in here)
    charts = [event for event in events if event["ph"] == "C"]
    assert sum(sum(chart["args"].values()) for chart in charts) == 3 * 5 * 4 + 9 * 4
    assert max(args["slots"] for args in ticks.values()) > 1


@pytest.mark.slow
def test_a_profile_names_operators_and_the_idle_share(capfd: pytest.CaptureFixture[str]) -> None:
    """Guards a profile of nothing, as products are among the costliest of a loop, and lines that
    the profiler writes of itself."""
    result = _run("profile", "--num-requests", "1", "--context", "5", "--new-tokens", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output.splitlines()[-1])["results"]
    assert len(found["costliest"]) == 10
    assert "aten::mm" in {one["name"] for one in found["costliest"]}
    assert 0 < found["idle"] < 1
    assert found["tokens"] == 3
    assert "profiler" not in capfd.readouterr().err


def test_a_profile_of_nothing_is_refused() -> None:
    """Where the profiler cannot look into a GPU, all of its time was idle."""
    seen: Any = SimpleNamespace(
        events=lambda: [SimpleNamespace(device_type=SimpleNamespace(name="CPU"))]
    )
    assert len(device_events(seen, "CPU")) == 1
    with pytest.raises(RltError, match="saw nothing on CUDA"):
        device_events(seen, "CUDA")


def test_an_operator_counts_without_those_that_it_calls() -> None:
    """Guards times that are counted twice, and an idle share below nothing."""

    def event(name: str, own: float, whole: float) -> Any:
        span = SimpleNamespace(elapsed_us=lambda: whole)
        return SimpleNamespace(name=name, self_cpu_time_total=own, time_range=span)

    events = [event("outer", 10.0, 100.0), event("inner", 90.0, 90.0), event("outer", 0.0, 0.0)]
    inner, outer = costliest(events, on_gpu=False)
    assert (inner.name, inner.calls, inner.share) == ("inner", 1, 0.9)
    assert (outer.name, outer.calls) == ("outer", 2)
    assert outer.ms == pytest.approx(0.01)
    assert costliest(events, on_gpu=True)[0].name == "outer"
    assert Profiled(seconds=1.0, busy_s=1.1, costliest=[]).idle == 0.0
