"""The generated parts of the documentation; `make docs` writes them through cog.

Each function returns Markdown. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from rlt_core.contract.capabilities import Word
from rlt_core.contract.hookspecs import HookSpecs


def hooks() -> str:
    """A section per hook: its signature and its docstring."""
    return "\n".join(_hook(name) for name in vars(HookSpecs) if name.startswith("rlt_"))


def words() -> str:
    """The capability words and their promises."""
    return table(("word", "promise"), [(f"`{word.value}`", word.promise) for word in Word])


def cli_help(*command: str) -> str:
    """What `rlt ... --help` prints, as a code block."""
    env = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "96"}
    argv = [sys.executable, "-m", "rlt_core.cli", *command, "--help"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout
    body = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"```console\n$ rlt {' '.join((*command, '--help'))}\n{body}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _hook(name: str) -> str:
    function = getattr(HookSpecs, name)
    parameters = [p for p in inspect.signature(function).parameters if p != "self"]
    body = inspect.cleandoc(function.__doc__ or "")
    body = re.sub(r"Example::\n\n((?:    .*\n?|\n)+)", _code_block, body)
    return f"## `{name}({', '.join(parameters)})`\n\n{body}\n"


def _code_block(match: re.Match[str]) -> str:
    code = inspect.cleandoc(match.group(1))
    return f"Example:\n\n```python\n{code}\n```\n"
