"""Start and end of an AsyncLLM: drains, event loops, calls of both at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from rlt_core.api import served_stage
from rlt_core.contract.errors import ConflictError, OptionError, StageError
from tests.app_kit import FAST, LONG, SLOWLY, params, run, scripted, until


def test_drain_lets_requests_end() -> None:
    """A server that was stopped cut off answers that had almost come; or took new ones."""

    async def scene() -> None:
        llm = scripted()
        await llm.start()
        short = asyncio.ensure_future(llm.generate(SLOWLY, params(6)))
        await until(lambda: llm.num_open == 1)
        closing = asyncio.ensure_future(llm.close(drain_s=20))
        await asyncio.sleep(0.02)
        assert not llm.ready
        with pytest.raises(StageError, match="shutting down"):
            await llm.generate(FAST, params())
        assert len((await short).outputs[0].token_ids) == 6
        await closing
        assert "shutting down" in llm.reason

    run(scene())


def test_drain_ends_what_takes_too_long() -> None:
    """A drain waited for an endless request; or left its reader waiting for ever."""

    async def scene() -> None:
        llm = scripted()
        await llm.start()
        endless = asyncio.ensure_future(llm.generate(SLOWLY, LONG))
        await until(lambda: llm.num_open == 1)
        await llm.close(drain_s=0.1)
        with pytest.raises(StageError, match="shut down"):
            await endless
        await llm.close()

    run(scene())


def test_a_start_up_error_is_raised_as_it_is() -> None:
    """A choice that cannot work was tried again and again instead of being reported."""

    async def scene() -> None:
        llm = scripted("build_refused")
        with pytest.raises(ConflictError):
            await llm.start()
        assert not llm.ready

    run(scene())


def test_before_the_start_nothing_is_served() -> None:
    """A server that was asked while it loaded its model failed with an AttributeError."""
    llm = scripted()
    assert not llm.ready
    assert llm.known_report is None
    with pytest.raises(StageError, match="not started"):
        llm.stream(FAST)
    with pytest.raises(StageError, match="not started"):
        _ = llm.report
    with pytest.raises(OptionError, match="max_waiting"):
        scripted(max_waiting=-1)


@pytest.mark.parametrize("closed", [False, True])
def test_another_event_loop_is_refused(closed: bool) -> None:
    """A second asyncio.run with the same object ended in "Event loop is closed", with a traceback
    from the thread that reads the stage; requests waited for ever."""
    llm = scripted()
    faults: list[object] = []
    waiting: list[asyncio.Task[None]] = []
    before, threading.excepthook = threading.excepthook, faults.append
    first = asyncio.new_event_loop()

    async def until_it_ends() -> None:
        async for _ in lasting:
            pass

    async def again() -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: llm.generate(FAST, params()),
            lambda: llm.score([1, 2, 3]),
            lambda: llm.encode("text"),
            lambda: llm.stats(),
            lambda: llm.stream(FAST, params()).open(),
            lambda: made.open(),
        ]
        for call in calls:
            with pytest.raises(StageError, match="belongs to the event loop that `start` ran in"):
                await call()
        assert llm.num_open == 1
        await asyncio.sleep(1.2)  # the reading thread asks the stage how it is
        await llm.start()
        assert (await llm.generate(FAST, params())).finished
        await llm.close()

    try:
        first.run_until_complete(llm.start())
        lasting = llm.stream(SLOWLY, LONG)
        first.run_until_complete(lasting.open())
        waiting.append(first.create_task(until_it_ends()))
        first.run_until_complete(asyncio.sleep(0.1))
        made = llm.stream(FAST, LONG, deadline=9.0)
        if closed:
            first.close()
        run(again())
    finally:
        threading.excepthook = before
        first.close()
    assert faults == []
    assert not _keepers()


def test_closing_while_the_stage_starts() -> None:
    """A server that was stopped while it loaded its model waited for the model first."""

    async def scene() -> None:
        llm = scripted(in_process=False)
        starting = asyncio.ensure_future(llm.start())
        await asyncio.sleep(0.05)
        await llm.close()
        with pytest.raises(StageError):
            await starting

    run(scene())


@pytest.mark.parametrize("before", [False, True])
def test_the_later_of_two_starts_serves(before: bool) -> None:
    """The first, whose stage the second had ended, closed the second's requests: the object
    answered nothing any more, whatever was called."""

    async def scene() -> None:
        llm = scripted()
        if before:
            await llm.start()
        ends = await asyncio.gather(llm.start(), llm.start(), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["AsyncLLM", "StageError"]
        assert llm.ready
        assert (await llm.generate(FAST, params())).finished
        await llm.close()
        assert not _keepers()

    run(scene())


def test_a_start_during_a_drain_serves() -> None:
    """Guards the new stage, and its requests, from the end of the drain."""

    async def scene() -> None:
        llm = await scripted().start()
        endless = asyncio.ensure_future(llm.generate(SLOWLY, LONG))
        await until(lambda: llm.num_open == 1)
        closing = asyncio.ensure_future(llm.close(drain_s=40))
        await asyncio.sleep(0)
        await llm.start()
        with pytest.raises(StageError, match="shut down"):
            await endless
        await closing
        assert (await llm.generate(FAST, params())).finished
        await llm.close()

    run(scene())


def test_a_start_that_is_closed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came back as if all were well, and a server that was told to end said that it is ready."""
    before, closing = served_stage._settle, list[asyncio.Task[None]]()

    async def scene() -> None:
        llm = scripted()

        def settle(first: asyncio.Future[None], error: BaseException | None) -> None:
            closing.append(asyncio.ensure_future(llm.close()))  # it begins before the start goes on
            before(first, error)

        monkeypatch.setattr(served_stage, "_settle", settle)
        with pytest.raises(StageError, match="closed while it started"):
            await llm.start()
        await closing[0]
        assert not _keepers()

    run(scene())


def test_a_start_that_is_dropped_leaves_no_stage() -> None:
    """A coroutine that nobody holds any more may not wait: it said that it ignored its end, and
    the stage ran on."""

    async def scene() -> None:
        llm = scripted()
        starting = llm.start()
        starting.send(None)  # as far as it goes without waiting
        starting.close()  # what a garbage collection does
        await until(lambda: not _keepers())
        assert not llm.ready
        async with llm:
            assert (await llm.generate(FAST, params())).finished

    run(scene())


def _keepers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("rlt-stage")]
