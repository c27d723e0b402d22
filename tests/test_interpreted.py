"""rlt-kernels on a CPU: its kernels under Triton's interpreter, in a process of their own.

Triton reads TRITON_INTERPRET when a kernel's module is imported, so no other test may share the
process. What the interpreter cannot show (bits, bfloat16) is in the tests marked gpu.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "tests/interpreted"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_under_the_interpreter() -> None:
    """A kernel that differs from its reference, found without a GPU; the inner report says more."""
    # -m "": all of them, whatever selection this run was started with.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", FOLDER]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"
    assert "skipped" not in done.stdout.splitlines()[-1]
