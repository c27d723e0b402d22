"""`rlt run` with nothing named: the embedded demo answers, and is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rlt_core.cli import main

NUM_SEEDS, AT_LEAST = 20, 18


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a user sees was a wrong answer, or one at full depth throughout."""
    right, depths = 0, []
    for seed in range(NUM_SEEDS):
        assert main(["run", "--seed", str(seed), "--json", "--in-process"]) == 0
        found = json.loads(capsys.readouterr().out)
        right += found["text"].strip() == found["expected"]
        depths += found["exit_depths"]
        assert found["finish_reason"] == "stop"
    print(f"{right} of {NUM_SEEDS} right, mean depth {sum(depths) / len(depths):.2f}")
    assert right >= AT_LEAST
    assert 1 <= min(depths) < max(depths) == 4


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_in_its_own_process() -> None:
    """`rlt run` printed the problem, and nothing else when stdout is no terminal."""
    command = [sys.executable, "-m", "rlt_core.cli", "run", "--seed", "3"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    problem, answer, expected, depths, rate = done.stdout.splitlines()
    assert problem.endswith("?")
    assert expected == f"expected: {answer} (right)"
    assert depths.startswith("exit depths: ")
    assert "mean depth" in rate
    assert "demo" in done.stderr
