"""The five distributions as an index would hold them, and fresh environments to install them in."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {
    "rlt-core": ROOT,
    **{f"rlt-{name}": ROOT / "plugins" / f"rlt_{name}" for name in ("ouro", "nanbeige")},
    **{f"rlt-{name}": ROOT / "plugins" / f"rlt_{name}" for name in ("huginn", "kernels")},
}


@dataclass(frozen=True)
class Built:
    """The archives of distributions by name, each built when it is first asked for."""

    folder: Path

    def wheel(self, name: str) -> Path:
        return self._one(name, "whl")

    def sdist(self, name: str) -> Path:
        return self._one(name, "tar.gz")

    def _one(self, name: str, ending: str) -> Path:
        pattern = f"{name.replace('-', '_')}-*.{ending}"
        if not any(self.folder.glob(pattern)):
            build_project(PROJECTS[name], self.folder)
        (found,) = self.folder.glob(pattern)
        return found

    def wheel_names(self, name: str) -> set[str]:
        return set(zipfile.ZipFile(self.wheel(name)).namelist())

    def sdist_names(self, name: str) -> set[str]:
        with tarfile.open(self.sdist(name)) as archive:
            return {member.split("/", 1)[1] for member in archive.getnames() if "/" in member}

    def about(self, name: str) -> Any:
        file = zipfile.ZipFile(self.wheel(name))
        (path,) = [n for n in file.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(path).decode())


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment; third-party packages are linked in, rlt's own are not."""

    python: Path

    def install(self, wheel: Path) -> None:
        """As pip would: unpack a pure wheel into site-packages."""
        (site,) = self.python.parent.parent.glob("lib/python*/site-packages")
        zipfile.ZipFile(wheel).extractall(site)

    def rlt(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", "rlt_core.cli", *argv]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=self.python.parent
        )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All five, each wheel built from its sdist, as the index would get them."""
    return Built(tmp_path_factory.mktemp("dist"))


def build_project(project: Path, folder: Path) -> None:
    """Its wheel (from its sdist) and its sdist into the folder."""
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    """An empty environment with the dependencies of rlt and nothing of rlt."""
    links = tmp_path / "dependencies"
    links.mkdir()
    for folder in {metadata.distribution(name).locate_file("") for name in ("torch", "pluggy")}:
        for entry in Path(str(folder)).iterdir():
            if "rlt" not in entry.name and entry.suffix != ".pth":
                (links / entry.name).symlink_to(entry)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "env")
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{links}\n")
    return Environment(tmp_path / "env" / "bin" / "python")
