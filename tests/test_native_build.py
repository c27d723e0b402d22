"""The native operators of rlt-kernels: built on request, with nvcc; else the wheel is pure."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fresh import Built
from tests.native_kit import PROJECT, hatch_build, nvcc, tool

LIBRARY = "rlt_kernels/native/librlt_native.so"
EXPORTS = {"rlt_silu_mul", "rlt_error_text"}


def _build(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    argv += ["--outdir", str(folder), str(PROJECT)]
    given = {**os.environ, **env}
    return subprocess.run(argv, env=given, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("1", True)])
def test_the_switch(value: str, wanted: bool) -> None:
    """Guards the default: nobody gets a compiler's errors who did not ask for it."""
    assert hatch_build().is_asked_for(value) is wanted


def test_another_value_of_the_switch_is_refused() -> None:
    """RLT_BUILD_CUDA=yes that quietly gives the pure wheel."""
    with pytest.raises(hatch_build().BuildError, match="RLT_BUILD_CUDA=yes: it is 1"):
        hatch_build().is_asked_for("yes")


def test_no_nvcc_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another toolkit than the one that CUDA_HOME names, or an exception without a fix."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(hatch_build().BuildError, match="has no bin/nvcc.\nFix: install the CUDA"):
        hatch_build().find_nvcc()
    (tmp_path / "bin").mkdir()
    own = tmp_path / "bin" / "nvcc"
    own.write_text("#!/bin/sh\necho broken source >&2\nexit 3\n")
    own.chmod(0o755)
    assert hatch_build().find_nvcc() == str(own)
    with pytest.raises(hatch_build().BuildError, match="nvcc failed\n.*\nbroken source"):
        hatch_build().compile_library(PROJECT, tmp_path / "library.so")


@pytest.mark.slow
def test_a_build_without_nvcc_ends_with_a_clear_error(tmp_path: Path) -> None:
    """A traceback of the build backend, or a pure wheel in place of what was asked for."""
    done = _build(tmp_path / "dist", RLT_BUILD_CUDA="1", CUDA_HOME=str(tmp_path))
    said = f"{done.stdout}{done.stderr}"
    assert done.returncode != 0
    assert f"with nvcc, and CUDA_HOME={tmp_path} has no bin/nvcc" in said
    assert "leave RLT_BUILD_CUDA unset for the pure Python wheel" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("dist/*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_is_pure_and_the_sdist_holds_the_sources(built: Built) -> None:
    """Guards the default install: no compiler, no chip, no platform; and those who build."""
    assert built.wheel("rlt-kernels").name.endswith("-py3-none-any.whl")
    names = built.wheel_names("rlt-kernels")
    assert not [name for name in names if name.endswith((".so", ".cu"))]
    assert {"rlt_kernels/native/__init__.py", "rlt_kernels/native/silu.py"} <= names
    assert {"csrc/silu_mul.cu", "hatch_build.py"} <= built.sdist_names("rlt-kernels")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_the_switch_the_wheel_has_the_library(tmp_path: Path) -> None:
    """A wheel of this platform for every Python; the source tree stays as it was."""
    nvcc()
    done = _build(tmp_path, RLT_BUILD_CUDA="1")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    (wheel,) = tmp_path.glob("*.whl")
    platform = wheel.stem.split("-py3-none-")[1]
    assert platform.startswith("linux_")
    archive = zipfile.ZipFile(wheel)
    assert LIBRARY in archive.namelist()
    about = archive.read("rlt_kernels-0.1.0.dist-info/WHEEL").decode()
    assert f"Tag: py3-none-{platform}" in about
    assert "Root-Is-Purelib: false" in about


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources compiled for sm_80 and sm_90."""
    nvcc()
    made = tmp_path_factory.mktemp("native") / "library.so"
    hatch_build().compile_library(PROJECT, made)
    return made


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_sources_compile_and_export_the_interface_alone(library: Path) -> None:
    """A symbol of the CUDA runtime inside that meets torch's own in the process."""
    targets = " ".join(hatch_build().TARGETS)
    assert all(chip in targets for chip in ("sm_80", "sm_90"))
    listed = subprocess.run(
        [tool("nm"), "-D", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == EXPORTS


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_library_is_called_as_it_was_written(library: Path) -> None:
    """Arguments in another order than in the source, without a GPU: a refusal names its reason."""
    pytest.importorskip("triton")
    from rlt_kernels.native.loader import NativeLibrary

    loaded = NativeLibrary(library)
    loaded.silu_mul(False, 0, 0, 0, 8, 16, False, 0)  # no rows: nothing to do
    with pytest.raises(RuntimeError, match="CUDA says 'invalid configuration argument'"):
        loaded.silu_mul(False, 0, 0, 1 << 31, 8, 16, False, 0)
    with pytest.raises(RuntimeError, match="CUDA says 'invalid configuration argument'"):
        loaded.silu_mul(True, 0, 0, 1, 1 << 40, 1 << 41, False, 0)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_no_step_is_approximate_and_sixteen_bytes_move_at_once(tmp_path: Path) -> None:
    """A fast division or a flushed number, which other bits than the reference's would follow from;
    stores that the compiler cut up."""
    text = tmp_path / "silu.ptx"
    source = PROJECT / "csrc" / "silu_mul.cu"
    argv = [nvcc(), "-O3", "-std=c++17", "-arch=sm_90", "-ptx", "-o", str(text), str(source)]
    subprocess.run(argv, check=True, capture_output=True)
    lines = text.read_text().splitlines()
    kinds = {line.split()[0] for line in lines if line.startswith("\t") and line.split()}
    assert {kind for kind in kinds if kind.startswith("div")} == {"div.rn.f32"}
    assert {"add.rn.f32", "mul.rn.f32"} <= kinds
    assert {"ld.global.v4.u32", "st.global.cg.v4.u32"} <= kinds
    assert not {kind for kind in kinds if "ld.global.nc" in kind}
