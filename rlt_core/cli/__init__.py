"""The command line. `main` is the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rlt` with `argv` (default: the process's own) and return the exit code.

    An RltError is printed on stderr, without a traceback, and gives its exit code (2). Anything
    else that escapes is a fault of rlt and keeps its traceback.
    """
    if sys.stdout is None:  # closed by the caller, who wants nothing of it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    try:  # imports take a tenth of a second, in which Ctrl-C may come too
        from rlt_core.contract.errors import RltError

        try:
            from rlt_core.cli.app import run_app

            return run_app(sys.argv[1:] if argv is None else list(argv))
        except RltError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
