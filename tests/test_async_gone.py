"""Requests of an AsyncLLM whose caller has gone: cancelled, closed, dropped, collected."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.inbox import Inbox
from rlt_core.api.open_requests import OpenRequests
from rlt_core.contract.errors import StageError
from tests.app_kit import FAST, LONG, SLOWLY, nothing_left, params, run, scripted, until
from tests.scripted_engine import SLOW


@pytest.mark.parametrize("how", ["cancel", "close", "drop", "leave"])
def test_who_goes_away_aborts(how: str) -> None:
    """A client that had gone kept its slot until max_tokens, however it had gone."""

    async def scene() -> None:
        async with scripted() as llm:
            stream = llm.stream(SLOWLY, LONG)

            async def read() -> None:
                async with stream:
                    async for _ in stream:
                        if how == "leave":
                            return

            if how == "close":
                await anext(stream)
                stream.close()
                assert [part async for part in stream] == []
            elif how == "drop":
                await anext(stream)
                gone = weakref.ref(stream)
                del stream, read
                gc.collect()
                assert gone() is None
                await asyncio.sleep(0)  # the loop aborts what was dropped
            else:
                task = asyncio.ensure_future(read())
                await until(lambda: llm.num_open == 1)
                if how == "cancel":
                    await asyncio.sleep(0.1)
                    task.cancel()
                await asyncio.wait({task})
            await nothing_left(llm)

    run(scene())


@pytest.mark.parametrize("what", ["stream", "open", "read", "pair", "score"])
def test_what_is_dropped_takes_no_lock(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection ends what nobody holds any more, streams and coroutines that wait for
    them, anywhere: one inside the lock of all requests hung them all."""
    inside, locked = [False], list[Inbox]()
    before = OpenRequests.give_up

    def noted(self: OpenRequests, inbox: Inbox) -> None:
        if inside[0]:
            locked.append(inbox)  # and no more: it would wait for ever
        else:
            before(self, inbox)

    monkeypatch.setattr(OpenRequests, "give_up", noted)

    async def scene() -> None:
        async with scripted() as llm:
            streams = [llm.stream(SLOWLY, LONG) for _ in range(2 if what == "pair" else 1)]

            async def read() -> None:
                async with streams[0]:
                    async for _ in streams[0]:
                        pass

            async def read_both() -> None:
                try:
                    await anext(streams[0])
                finally:
                    for stream in streams:
                        stream.close()

            if what != "open" and what != "score":
                for stream in streams:
                    await stream.open()
                del stream
            held: Coroutine[object, object, object] | None = None
            if what != "stream":
                made = {"score": lambda: llm.score([SLOW, 5, 6]), "pair": read_both}.get(what, read)
                held = made()
                held.send(None)  # as far as it goes without waiting
            assert llm.num_open == (2 if what == "pair" else 1)
            with llm._started.reading():
                inside[0] = True
                if what == "stream":
                    streams.clear()
                del held
                gc.collect()
                inside[0] = False
            assert locked == []
            await asyncio.sleep(0)  # the loop aborts what was dropped
            await nothing_left(llm)

    run(scene())


def test_a_deadline_s_timer_ends_with_its_request() -> None:
    """It held an answer's tokens until the deadline, long after the answer had been given."""

    async def scene() -> None:
        async with scripted() as llm:
            stream = llm.stream(FAST, params(), deadline=3600.0)
            async for _ in stream:
                pass
            assert stream._inbox is not None
            assert stream._inbox.timer is not None
            assert stream._inbox.timer.cancelled()

    run(scene())


def test_cancelling_while_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request cancelled while its text was tokenized was sent all the same, and ran alone."""

    async def scene() -> None:
        go, reached = threading.Event(), threading.Event()
        async with scripted() as llm:
            _hold_reading(llm, monkeypatch, reached, go)
            task = asyncio.ensure_future(llm.generate(SLOWLY, LONG))
            await until(reached.is_set)
            task.cancel()
            await asyncio.wait({task})
            go.set()
            await asyncio.sleep(0.1)
            await nothing_left(llm)
            assert (await llm.stats()).ticks == 0

    run(scene())


def test_a_close_fails_what_waits_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests behind those whose text was read were cancelled, though nobody had done so."""

    async def scene() -> None:
        go = threading.Event()
        llm = scripted()
        await llm.start()
        _hold_reading(llm, monkeypatch, threading.Event(), go)
        tasks = [asyncio.ensure_future(llm.generate(SLOWLY, LONG)) for _ in range(6)]
        await until(lambda: llm.num_open == 6)
        await llm.close()
        go.set()
        for task in tasks:
            with pytest.raises(StageError, match="shut down"):
                await task
        with pytest.raises(StageError, match="shutting down"):
            await llm.encode("text")

    run(scene())


def _hold_reading(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, reached: threading.Event, go: threading.Event
) -> None:
    """Prompts are read once `go` is set; `reached` says that one is to be."""
    requests = llm._started
    before = requests._batch

    def slow(*args: Any) -> object:
        reached.set()
        go.wait(10)
        return before(*args)

    monkeypatch.setattr(requests, "_batch", slow)
