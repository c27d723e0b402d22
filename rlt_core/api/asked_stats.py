"""Questions to a stage on how it is, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlt_core.schedule.stats import EngineStats
from rlt_core.stage.messages import Stats

STATS_S = 2.0


class AskedStats:
    """Belongs to one event loop. last: what was answered last."""

    def __init__(self) -> None:
        self.last = EngineStats()
        self._waiting: dict[int, asyncio.Future[EngineStats]] = {}
        self._num_asked = 0

    async def ask(self, send: Callable[[int], bool]) -> EngineStats:
        """The answer to a question that `send` takes to the stage, by number, if it can; the last
        one where none comes within 2 s."""
        self._num_asked += 1
        number = self._num_asked
        answer: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            if send(number):
                await asyncio.wait((answer,), timeout=STATS_S)
        finally:
            del self._waiting[number]
        return answer.result() if answer.done() else self.last

    def answered(self, answer: Stats) -> None:
        """An answer came, asked for here or elsewhere."""
        self.last = answer.stats
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.stats)
