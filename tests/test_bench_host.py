"""`rlt bench host` measures what it says: what its ticks contain is checked, never their time."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from rlt_core.bench.host import measure_host
from rlt_core.cli import bench


def test_every_timed_tick_admits_one_and_ends_one() -> None:
    """Guards a benchmark that times an engine without the work it claims: idle slots, no ends."""
    times = measure_host(64, ticks=30)
    assert times.ends_per_tick == 1.0
    assert times.admissions_per_tick == 1.0
    assert times.tokens_per_tick > 64 / 4
    assert 0 < times.p50 <= times.p99


def test_json_output_is_one_document(capfd: pytest.CaptureFixture[str]) -> None:
    """Guards `--json` that a script cannot read."""
    app = typer.Typer()
    bench.register(app)
    result = CliRunner().invoke(app, ["bench", "host", "--slots", "16", "--ticks", "5", "--json"])
    assert result.exit_code == 0, result.output
    (times,) = json.loads(result.output)["host"]
    assert times["num_slots"] == 16
    assert times["ticks"] == 5
