"""Sends requests when they are due, answered or not the earlier ones, and notes the times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from rlt_core.bench.answers import Answered
from rlt_core.bench.offered import Ask, Served


class AskError(Exception):
    """A request that got no whole answer; the text is its kind, the same for all of one kind, and
    detail what was said of this one."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that came together, and their exit depths, where they are told."""

    num_tokens: int
    depths: Sequence[int] | None


class Target(Protocol):
    """A model that is asked."""

    async def served(self) -> Served:
        """What it is; once, before anything is asked."""
        ...

    def ask(self, ask: Ask) -> AsyncIterator[Piece]:
        """The pieces of an answer as they come; AskError."""
        ...


class OpenLoad:
    """At most `concurrency` requests are open at once (None: any number); later ones wait, and
    that counts. late_s: the most that sending fell behind for want of time, not of places."""

    def __init__(
        self, target: Target, concurrency: int | None, progress: Callable[[], object]
    ) -> None:
        self._target, self._progress, self.late_s = target, progress, 0.0
        self._places = None if concurrency is None else asyncio.Semaphore(concurrency)

    async def run(self, asks: Sequence[Ask]) -> list[Answered]:
        """What came of them, in their order."""
        self._start = time.perf_counter()
        tasks = []
        for ask in asks:
            await asyncio.sleep(max(0.0, ask.at - self._now()))
            self.late_s = max(self.late_s, self._now() - ask.at)
            tasks.append(asyncio.create_task(self._one(ask)))
        return list(await asyncio.gather(*tasks))

    def _now(self) -> float:
        return time.perf_counter() - self._start

    async def _one(self, ask: Ask) -> Answered:
        found = Answered(arrived=ask.at, prompt_len=len(ask.prompt), num_tokens=ask.num_tokens)
        try:
            async with self._places or nullcontext():
                async for piece in self._target.ask(ask):
                    found.came.append((self._now(), piece.num_tokens))
                    if piece.depths is not None:
                        found.num_loops = (found.num_loops or 0) + sum(piece.depths)
            if found.made != ask.num_tokens:
                found.error = "fewer tokens than asked for"
        except AskError as error:
            found.error, found.detail = str(error), error.detail
        found.ended = self._now()
        self._progress()
        return found
