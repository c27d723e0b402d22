"""Builds the native operators into the wheel where RLT_BUILD_CUDA=1 asks for them, with nvcc.

Without it the wheel is pure Python, and nothing here is needed. The library has a C interface and
its own CUDA runtime inside: it is built against neither Python nor torch, and serves any of both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "RLT_BUILD_CUDA"
SOURCES = ("csrc/silu_mul.cu",)
LIBRARY = "rlt_kernels/native/librlt_native.so"
# The oldest chips that rlt serves, and one whose code newer ones compile for themselves.
TARGETS = ("arch=compute_80,code=sm_80", "arch=compute_90,code=[sm_90,compute_90]")
_FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-cudart", "static"),
    # Nothing but the interface may be seen, and no symbol of another CUDA runtime be taken.
    *("-Xcompiler", "-fPIC,-fvisibility=hidden", "-Xlinker", "--exclude-libs,ALL"),
)


class BuildError(Exception):
    """The native operators were asked for and cannot be built; str() says what to do."""


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, or puts it into the source tree of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """hatchling's call before a wheel is put together; version is "editable" or "standard"."""
        try:
            made = self._make(editable=version == "editable")
        except BuildError as error:
            self.app.abort(str(error))
            raise
        if made is not None:
            build_data["force_include"][str(made)] = LIBRARY
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def _make(self, *, editable: bool) -> Path | None:
        """The library, where a wheel must take it from another place than the source tree."""
        if not is_asked_for(os.environ.get(SWITCH, "")):
            return None
        root = Path(self.root)
        if editable:
            compile_library(root, root / LIBRARY)
            return None
        self._folder = tempfile.TemporaryDirectory()
        made = Path(self._folder.name) / Path(LIBRARY).name
        compile_library(root, made)
        return made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """hatchling's call when the archive is written."""
        if folder := getattr(self, "_folder", None):
            folder.cleanup()


def is_asked_for(value: str) -> bool:
    """What RLT_BUILD_CUDA says. BuildError for anything but 1, 0 and nothing."""
    if value not in ("", "0", "1"):
        raise BuildError(f"{SWITCH}={value}: it is 1 (build the native operators) or 0")
    return value == "1"


def compile_library(root: Path, to: Path) -> None:
    """Compile the sources below `root` into the library `to`. BuildError where that fails."""
    nvcc = find_nvcc()
    targets = [word for target in TARGETS for word in ("-gencode", target)]
    sources = [str(root / source) for source in SOURCES]
    command = [nvcc, *_FLAGS, *targets, "-o", str(to), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = f"{done.stdout}{done.stderr}".strip()
        raise BuildError(f"{SWITCH}=1: nvcc failed\n{' '.join(command)}\n{output}")


def find_nvcc() -> str:
    """CUDA_HOME's nvcc where that is set; else the one on PATH, else in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME")
    if home:
        found = shutil.which("nvcc", path=str(Path(home) / "bin"))
    else:
        found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        where = f"CUDA_HOME={home} has no bin/nvcc" if home else "there is none on PATH"
        raise BuildError(
            f"{SWITCH}=1 builds the native operators of rlt-kernels with nvcc, and {where}.\n"
            "Fix: install the CUDA toolkit and set CUDA_HOME to it, or leave "
            f"{SWITCH} unset for the pure Python wheel"
        )
    return found


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
