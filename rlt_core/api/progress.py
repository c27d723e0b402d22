"""A progress bar for calls that take over a second, in a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rlt_core.api.batch import Batch

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY_S = 1.0
EVERY_S = 0.1


class Progress:
    """wanted: None decides by stderr being a terminal. `update` is cheap before its time."""

    def __init__(self, wanted: bool | None, batch: Batch) -> None:
        self._wanted = sys.stderr.isatty() if wanted is None else wanted
        # A bar that was asked for stays; one that showed itself goes with the call.
        self._transient = wanted is None
        self._batch = batch
        self._bar: Bar | None = None
        self._next = time.monotonic() + DELAY_S

    def update(self) -> None:
        """Shows how many prompts have ended."""
        if not self._wanted or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        if self._bar is None:
            self._bar = _new_bar(len(self._batch.entries), self._transient)
        self._bar.update(self._bar.task_ids[0], completed=self._batch.num_finished)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar(total: int, transient: bool) -> Bar:
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(stderr=True), transient=transient)
    bar.add_task("prompts", total=total)
    bar.start()
    return bar
