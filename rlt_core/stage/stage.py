"""The stage: an engine behind messages. The same code runs in a process and without one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rlt_core.contract.errors import RequestError, RltError
from rlt_core.runtime.batch import I32, I64
from rlt_core.schedule.request import EngineRequest, Events
from rlt_core.schedule.stats import EngineStats, OutputDepths, at_least
from rlt_core.stage.messages import (
    Abort,
    AddRequests,
    Answer,
    GetStats,
    Masks,
    Ping,
    Pong,
    Ready,
    Request,
    RequestFailed,
    StageFailed,
    StageReport,
    Stats,
    Tick,
)


class EngineLike(Protocol):
    """What a stage needs of an engine."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: EngineRequest) -> None:
        """Takes a request; RequestError when it can never run."""
        ...

    def abort(self, request_id: int) -> None: ...

    def put_masks(self, request_id: I64, index: I64, words: I32) -> None:
        """Takes masks (messages.Masks)."""
        ...

    def step(self) -> Events:
        """Submits what can run and gives the events of the oldest tick that is done."""
        ...

    def stats(self) -> EngineStats:
        """Gauges and counters; `outputs`, and the row-loops of outputs, are the stage's."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class BuiltEngine:
    """What an engine factory returns."""

    engine: EngineLike
    report: StageReport


class Stage:
    """Takes requests, runs ticks, sends what they gave through `send`."""

    def __init__(self, built: BuiltEngine, send: Callable[[Answer], None]) -> None:
        self._engine, self._send = built.engine, send
        self._full = built.report.exit_mode == "full"
        self._depths = OutputDepths(built.report.max_depth)
        self.ended = False
        send(Ready(report=built.report))

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return not self.ended and self._engine.has_work

    def handle(self, message: Request) -> None:
        """Takes one message of the client."""
        if isinstance(message, AddRequests):
            for request in message.requests:
                self._add(request)
        elif isinstance(message, Abort):
            for request_id in message.request_ids:
                self._engine.abort(request_id)
        elif isinstance(message, Masks):
            self._engine.put_masks(message.request_id, message.index, message.words)
        elif isinstance(message, Ping):
            self._send(Pong(number=message.number))
        elif isinstance(message, GetStats):
            self._send(Stats(number=message.number, stats=self.stats()))
        else:
            self.ended = True

    def step(self) -> None:
        """Runs the engine once and sends what came of it."""
        events = self._engine.step()
        if events.columns.shape[1]:
            self._depths.count(events)
        elif not len(events.score_request_id) and not len(events.cached_request_id):
            return
        self._send(Tick(events=events))

    def stats(self) -> EngineStats:
        """What the stage is doing and has done."""
        stats = self._engine.stats()
        stats.outputs = self._depths.outputs
        ended = stats.outputs
        if self._full:  # they are read at their exit, and go on
            ended = [*[0] * (len(ended) - 1), sum(ended)]
        prompts = stats.row_loops or [0] * len(ended)
        stats.row_loops = [a + b for a, b in zip(prompts, at_least(ended), strict=True)]
        return stats

    def close(self) -> None:
        """Frees the engine."""
        self.ended = True
        self._engine.close()

    def _add(self, request: EngineRequest) -> None:
        try:
            self._engine.add(request)
        except RequestError as error:
            self._send(
                RequestFailed(request_id=request.request_id, field=error.field, reason=error.reason)
            )


def failure_message(error: BaseException) -> StageFailed:
    """What a stage says before it ends: the error's own text, or a fault's traceback."""
    if isinstance(error, RltError):
        fields = {k: v for k, v in vars(error).items() if _is_plain(v)}
        return StageFailed(error=type(error).__name__, text=str(error), fields=fields)
    text = "".join(traceback.format_exception(error)).rstrip()
    return StageFailed(error=None, text=text)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float))
