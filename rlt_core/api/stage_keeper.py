"""Keeps a stage running: reads its answers, asks how it is, starts another when it ends."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlt_core.api.open_requests import OpenRequests
from rlt_core.api.sender import Sender
from rlt_core.contract.errors import StageError
from rlt_core.stage.client import Client
from rlt_core.stage.messages import GetStats, StageReport, Stats

READ_S = 0.1
ASK_S = 1.0
STABLE_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0

MakeClient = Callable[[Callable[[], bool]], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told, in the keeper's thread: a stage is up, and will serve; it serves; one could not
    be started; an answer on how it is."""

    started: Callable[[StageReport], object]
    serves: Callable[[], object]
    failed: Callable[[BaseException], object]
    counted: Callable[[Stats], object]


class StageKeeper:
    """A thread that owns the stage's client, one client after another.

    make: starts a stage and gives its client, or gives up once its argument is true. restart:
    start another stage when one ends. hang_s: a stage that leaves a question unanswered for so
    long is taken for hung, and ended; None: never. ready, reason: whether a stage serves, and why
    not. num_restarts: stages beyond the first.
    """

    def __init__(
        self,
        make: MakeClient,
        requests: OpenRequests,
        watcher: Watcher,
        *,
        restart: bool,
        hang_s: float | None,
    ) -> None:
        self._make, self._requests, self._watcher = make, requests, watcher
        self._restart, self._hang_s = restart, hang_s
        self._ending = threading.Event()
        self._sender: Sender | None = None
        self.ready, self.reason, self.num_restarts = False, "the stage is starting", 0
        self.pid: int | None = None
        self._thread = threading.Thread(target=self._run, name="rlt-stage-keeper", daemon=True)

    def start(self) -> None:
        """Begins to start the stage."""
        self._thread.start()

    def ask(self, number: int) -> bool:
        """Asks for Stats of this number; False when no stage is there to answer."""
        sender = self._sender
        if sender is not None:
            sender.send(GetStats(number=number))
        return sender is not None

    def end_soon(self) -> None:
        """Ends the stage and the thread, and waits for neither."""
        self._ending.set()

    def end(self) -> None:
        """Ends the stage and the thread, and waits for both."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        num_failures = 0
        while True:
            began = time.monotonic()
            served, cause = self._one_stage()
            if self._ending.is_set():
                return
            stable = served and time.monotonic() - began > STABLE_S
            num_failures = 1 if stable else num_failures + 1
            if not self._restart:
                self.reason = f"{cause}; it is not restarted"
                return
            self.reason = f"{cause}; it is started again"
            self._ending.wait(0.0 if served and num_failures == 1 else _pause(num_failures))
            self.num_restarts += 1
            gc.collect()  # of one in this process, weights and pool would stand beside the next's

    def _one_stage(self) -> tuple[bool, str]:
        """Starts a stage and serves until it ends: whether it began to serve, what ended it."""
        try:
            client = self._make(self._ending.is_set)
        except Exception as error:
            self._requests.disconnect(_cause(error))
            self._watcher.failed(error)
            return False, _cause(error)
        sender = Sender(client)
        try:
            return True, self._serve(client, sender)
        finally:
            client.close()
            sender.end()

    def _serve(self, client: Client, sender: Sender) -> str:
        self.pid = getattr(client, "pid", None)
        self._watcher.started(client.report)
        self._requests.connect(sender.send)
        self._sender, self.ready, self.reason = sender, True, ""
        self._watcher.serves()
        cause = "the stage is closed"
        try:
            self._read(client, sender)
        except Exception as error:
            cause = _cause(error)  # alone: by its frames the error holds the client
        # Those who wait are told now: a hung process takes seconds to end.
        self._sender, self.ready, self.reason = None, False, cause
        self._requests.disconnect(cause)
        return cause

    def _read(self, client: Client, sender: Sender) -> None:
        heard = asked = time.monotonic()
        while not self._ending.is_set():
            answers = client.receive(READ_S)
            now = time.monotonic()
            for answer in answers:
                if isinstance(answer, Stats):
                    heard = now
                    self._watcher.counted(answer)
            self._requests.deliver(answers)
            if now - asked >= ASK_S:
                asked = now
                sender.send(GetStats(number=0))
            if self._hang_s is not None and now - heard > self._hang_s:
                raise StageError(f"the stage has not answered for {self._hang_s:g} s")


def _pause(num_failures: int) -> float:
    """Seconds before the next try after so many stages that did not last."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(num_failures - 1, 10))


def _cause(error: BaseException) -> str:
    return error.reason if isinstance(error, StageError) else str(error)
