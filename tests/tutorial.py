"""Runs a tutorial page block by block, as a reader would, in a clean directory.

sh: commands that succeed. console: commands with what they print; `...` stands for any lines.
diff: changes to files (`--- FILE` begins one, `@@` separates places). python: a program that
succeeds. jinja: a file whose first line is a comment with its name.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm import Warm

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class TutorialError(AssertionError):
    """A block of the page does not do what the page says."""


@dataclass(frozen=True)
class Tutorial:
    """Blocks run with `python`'s environment in `folder`; what `warm` may run, it runs."""

    python: Path
    folder: Path
    warm: Warm | None = None
    warmed: set[str] = field(default_factory=set)

    def run(self, page: str) -> list[str]:
        """Run every block in order; the kinds of blocks that were run."""
        kinds = []
        for kind, text in BLOCK.findall(page):
            getattr(self, f"_{kind}")(text)
            kinds.append(kind)
        return kinds

    def _sh(self, text: str) -> None:
        for line in text.splitlines():
            command = shlex.split(line, comments=True)
            if command:
                done = self._call(command)
                _expect(done.returncode == 0, line, done)

    def _console(self, text: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, wanted = part.partition("\n")
            done = self._call(shlex.split(line))
            lines = wanted.splitlines(keepends=True)
            pattern = "".join("(?s:.*)" if x == "...\n" else re.escape(x) for x in lines)
            printed = done.stdout + done.stderr
            _expect(re.fullmatch(pattern, printed) is not None, f"{line}\n{wanted}", done)

    def _python(self, text: str) -> None:
        done = self._process([str(self.python), "-c", text])
        _expect(done.returncode == 0, text, done)

    def _jinja(self, text: str) -> None:
        name = text.split()[1]
        (self.folder / name).write_text(text, encoding="utf-8")

    def _diff(self, text: str) -> None:
        for name, places in _files(text):
            path = self.folder / name
            old = path.read_text(encoding="utf-8")
            for place in places:
                old = _changed(old, place, name)
            path.write_text(old, encoding="utf-8")

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        match command:
            case ["rlt", *rest] if self._is_warm(rest[0]):
                assert self.warm is not None, rest
                # In a process of its own a stage would import torch again.
                alone = ["--in-process"] if rest[0] == "run" else []
                return self.warm.rlt([*rest, *alone], self.folder)
            case ["rlt", *rest]:
                return self._process([str(self.python), "-m", "rlt_core.cli", *rest])
            case ["pip", "install", *rest]:
                # What the package needs is installed: no index is asked.
                pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
                offline = ["--no-index", "--no-deps", "--no-build-isolation"]
                return self._process([*pip, *offline, *rest])
            case ["python", "-m", "build", *rest]:
                build = [sys.executable, "-m", "build", "--no-isolation"]
                return self._process([*build, *rest])
        raise TutorialError(f"a tutorial runs rlt, pip install and python -m build, not {command}")

    def _is_warm(self, command: str) -> bool:
        """Every command but the first of its kind, which is a reader's to the last bit."""
        known = command in self.warmed
        self.warmed.add(command)
        return known and self.warm is not None

    def _process(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=clean(), capture_output=True, text=True, timeout=240
        )


def clean() -> dict[str, str]:
    """The environment without what leads to this repository."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def _files(text: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^--- ", text, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        yield name, re.split(r"^@@\n", body, flags=re.MULTILINE)


def _changed(text: str, place: str, name: str) -> str:
    lines = place.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    if text.count(old) != 1:
        raise TutorialError(f"{text.count(old)} places in {name} are:\n{old}")
    return text.replace(old, new)


def _expect(good: bool, what: str, done: subprocess.CompletedProcess[str]) -> None:
    if not good:
        told = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        raise TutorialError(f"{what}\n{told}")
