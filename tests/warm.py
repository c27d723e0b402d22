"""A process that has imported torch, and runs `rlt` commands in forks of itself.

A test that runs a dozen commands in another environment would import torch a dozen times, which
takes longer than what they do. Each command has a process of its own all the same: what it imports
besides, its directory and its streams are new.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CODE = """
import importlib, json, os, site, sys

importlib.import_module(sys.argv[1])

def run(argv, folder, out, err):
    os.chdir(folder)
    for fd, name in enumerate((os.devnull, out, err)):
        os.dup2(os.open(name, os.O_RDWR), fd)
    importlib.invalidate_caches()
    for packages in site.getsitepackages():
        site.addsitedir(packages)  # what was installed since this process began
    sys.argv = ["rlt", *argv]
    try:
        from rlt_core.cli import main
        code = main(argv)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)

print(flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(**json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Warm:
    """`rlt` of one environment; a context manager, which ends it. imports: the module that is
    there before the first command."""

    def __init__(
        self, python: Path, env: Mapping[str, str] | None = None, imports: str = "torch"
    ) -> None:
        self._process = subprocess.Popen(
            [str(python), "-c", CODE, imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"},
        )
        self._read()

    def rlt(self, argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """What the command printed, and its exit code; as from subprocess.run."""
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            ask = {"argv": [*argv], "folder": str(folder), "out": out.name, "err": err.name}
            assert self._process.stdin is not None, "no pipe"
            print(json.dumps(ask), file=self._process.stdin, flush=True)
            code = int(self._read())
            return subprocess.CompletedProcess(["rlt", *argv], code, out.read(), err.read())

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None, "no pipe"
        line = self._process.stdout.readline()
        assert line, "the warm process ended"
        return line
