"""A stage without a process: the same code and messages, for debugging and quick tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from rlt_core.contract.errors import RltError, StageError
from rlt_core.plugins.loading import load_object
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import Answer, Ready, Request, StageReport
from rlt_core.stage.stage import BuiltEngine, Stage


class LocalClient:
    """Fits stage.client.Client; the engine runs inside `receive`."""

    def __init__(self, config: StageConfig) -> None:
        self._requests: deque[Request] = deque()
        self._answers: deque[Answer] = deque()
        self._arrived = threading.Event()
        self._failure: str | None = None
        build = cast(Callable[[StageConfig], BuiltEngine], load_object(config.engine_factory))
        self._stage = Stage(build(config), self._answers.append)
        self.report: StageReport = cast(Ready, self._answers.popleft()).report

    def send(self, message: Request) -> None:
        """Queues a message; the next `receive` handles it."""
        self._check()
        self._requests.append(message)
        self._arrived.set()

    def receive(self, timeout: float) -> list[Answer]:
        """Handles what was sent and runs ticks until there is an answer or nothing to do, in
        which case it waits up to `timeout` seconds for a message."""
        self._check()
        if not self._stage.has_work:
            self._arrived.wait(timeout)
        try:
            self._run()
        except RltError as error:
            self._fail(error)
            raise
        except Exception as error:
            self._fail(error)
            raise StageError(str(self._failure)) from error
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def close(self) -> None:
        """Frees the engine; may be called again."""
        if not self._stage.ended:
            self._failure = self._failure or "the stage is closed"
            self._stage.close()

    def _run(self) -> None:
        while True:
            # Between ticks, so that an abort is heard as soon as in a process of its own.
            self._arrived.clear()
            while self._requests:
                self._stage.handle(self._requests.popleft())
            if self._answers or not self._stage.has_work:
                return
            self._stage.step()

    def _check(self) -> None:
        if self._failure is not None:
            raise StageError(self._failure)

    def _fail(self, error: BaseException) -> None:
        self._failure = f"the stage failed: {type(error).__name__}: {error}"
        self._stage.ended = True

    def __getstate__(self) -> Any:
        raise TypeError("a stage client cannot be pickled")
