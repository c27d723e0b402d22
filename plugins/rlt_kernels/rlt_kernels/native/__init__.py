"""Operators compiled with nvcc, where the wheel was built so; nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

from rlt_core.contract import Extra

# Where hatch_build.py puts it.
LIBRARY = Path(__file__).with_name("librlt_native.so")
BUILD = (
    "RLT_BUILD_CUDA=1 pip install --force-reinstall --no-deps --no-binary rlt-kernels rlt-kernels, "
    "with nvcc"
)


def native_extra() -> Extra:
    """Whether the library was built into this install."""
    found = "built" if LIBRARY.is_file() else None
    return Extra(found=found, lack="not built", fix=BUILD)
