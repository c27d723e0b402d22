"""hatch_build.py of rlt-kernels, and what tests of its native operators need."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types

import pytest

from tests.fresh import PROJECTS

PROJECT = PROJECTS["rlt-kernels"]


def hatch_build() -> types.ModuleType:
    """The build hook as a module."""
    name = "rlt_kernels_hatch_build"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PROJECT / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def nvcc() -> str:
    """nvcc of this machine; the test is skipped where there is none."""
    build = hatch_build()
    try:
        return str(build.find_nvcc())
    except build.BuildError:
        pytest.skip("nvcc is not installed (CUDA toolkit)")


def tool(name: str) -> str:
    """A tool of the machine; the test is skipped where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found
