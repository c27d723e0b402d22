"""A progress bar while a stage captures its graphs, which takes some seconds at start-up."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class CaptureBar:
    """Shown in a terminal, on stderr; call it with (done, of)."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> CaptureBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("capturing CUDA graphs", total=None)
        return self

    def __call__(self, done: int, of: int) -> None:
        """`done` graphs of `of` are captured."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=of)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
