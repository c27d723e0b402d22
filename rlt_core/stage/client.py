"""Clients of a stage: requests go in, answers come out, and a stage's end is an error."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from rlt_core.contract import errors
from rlt_core.contract.errors import RltError, StageError
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import (
    Answer,
    Ready,
    Request,
    Shutdown,
    StageFailed,
    StageReport,
    decode_answer,
    encode,
)
from rlt_core.stage.process import StageProcess, bind_pair, private_folder

POLL_S = 0.1
LAST_WORDS_S = 1.0


class Client(Protocol):
    """What `api` needs: `send` from any thread, `receive` from one thread at a time."""

    @property
    def report(self) -> StageReport: ...

    def send(self, message: Request) -> None:
        """Queues a message; StageError when the stage has ended."""
        ...

    def receive(self, timeout: float) -> list[Answer]:
        """What has arrived, waiting up to `timeout` seconds; StageError when the stage ended."""
        ...

    def close(self) -> None:
        """Ends the stage; may be called again."""
        ...


class StageClient:
    """A stage in a process of its own.

    The constructor returns once the stage is ready; a start-up error of the stage is raised here
    as the class it was. Two sockets, one a direction, because a ZeroMQ socket belongs to one
    thread at a time and a sender must not wait for a receiver.
    """

    def __init__(self, config: StageConfig, given_up: Callable[[], bool] | None = None) -> None:
        """`given_up` is asked ten times a second while the stage starts; once it is true the
        start ends with a StageError."""
        self._owner = os.getpid()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._failure: RltError | None = None
        self._unread: list[Answer] = []  # what a sender found when it asked why the stage ended
        self._closed = False
        self._context: zmq.Context[Any] = zmq.Context()
        folder = private_folder()
        self._outbox, self._inbox, endpoints = bind_pair(self._context, folder)
        self._process = StageProcess(config, folder, endpoints)
        try:
            self.report = self._wait_until_ready(given_up or (lambda: False))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The stage's process id."""
        return self._process.pid

    def send(self, message: Request) -> None:
        """Queues a message; StageError when the stage has ended."""
        data = encode(message)
        with self._sending:
            if self._failure is not None:
                raise _again(self._failure)
            try:
                # A socket without a peer would block for ever, and only a stage that has ended
                # is none: there is no limit on what is queued.
                self._outbox.send(data, zmq.NOBLOCK)
                return
            except zmq.Again:
                pass
        raise self._why_it_ended()

    def receive(self, timeout: float) -> list[Answer]:
        """What has arrived, waiting up to `timeout` seconds; StageError when the stage ended."""
        with self._receiving:
            if not self._unread and self._failure is not None:
                raise _again(self._failure)
            answers, self._unread = self._unread or self._poll(timeout), []
            return answers

    def close(self) -> None:
        """Ends the stage and waits for it; may be called again. A forked copy of this process
        leaves the stage alone."""
        with self._sending:
            if self._closed or os.getpid() != self._owner:
                return
            self._closed = True
            if self._failure is None:
                self._failure = StageError("the stage is closed")
                with contextlib.suppress(zmq.Again):
                    self._outbox.send(encode(Shutdown()), zmq.NOBLOCK)
        with self._receiving:
            self._process.stop()
            self._context.destroy(linger=0)

    def _wait_until_ready(self, given_up: Callable[[], bool]) -> StageReport:
        while not given_up():
            for answer in self.receive(POLL_S):
                if isinstance(answer, Ready):
                    return answer.report
        raise StageError("the stage was closed before it was ready")

    def _why_it_ended(self) -> StageError:
        """For a sender without a peer: the stage's last words count, though nobody has read them
        yet; answers before them are kept for `receive`."""
        deadline = time.monotonic() + LAST_WORDS_S
        with self._receiving:
            while self._failure is None and time.monotonic() < deadline:
                with contextlib.suppress(RltError):
                    self._unread += self._poll(POLL_S)
            self._failure = self._failure or self._lost()
            return _again(self._failure)

    def _poll(self, timeout: float) -> list[Answer]:
        deadline = time.monotonic() + timeout
        while True:
            wait = min(POLL_S, max(0.0, deadline - time.monotonic()))
            # Asked before the last look into the inbox: what a stage said before its end counts.
            ended = self._process.end_reason()
            answers = self._before_failure(self._drain(0.2 if ended else wait))
            if answers or self._failure is not None:
                return answers
            if ended:
                self._failure = self._lost()
                raise self._failure
            if time.monotonic() >= deadline:
                return []

    def _before_failure(self, answers: list[Answer]) -> list[Answer]:
        """What was finished before the stage's failure counts; the next call raises."""
        for i, answer in enumerate(answers):
            if isinstance(answer, StageFailed):
                self._failure = as_error(answer)
                if i == 0:
                    raise self._failure
                return answers[:i]
        return answers

    def _lost(self) -> StageError:
        reason = self._process.end_reason() or "the stage process does not answer"
        return StageError(f"{reason}; requests in it are lost", "start a new LLM")

    def _drain(self, wait: float) -> list[Answer]:
        answers: list[Answer] = []
        while self._inbox.poll(0 if answers else int(wait * 1000)):
            answers.append(decode_answer(self._inbox.recv()))
        return answers


def as_error(message: StageFailed) -> RltError:
    """The error a stage ended with: the same class, text and plain fields."""
    kind = getattr(errors, message.error, None) if message.error else None
    if not (isinstance(kind, type) and issubclass(kind, RltError)):
        return StageError(f"the stage failed; this is a fault of rlt:\n{message.text}")
    error = kind.__new__(kind)
    Exception.__init__(error, message.text)
    error.__dict__.update(message.fields)
    return error


def _again(failure: RltError) -> StageError:
    # A new object each time: several threads may raise it, and each adds its own traceback.
    if isinstance(failure, StageError):
        return StageError(failure.reason, failure.advice)
    return StageError(str(failure))
