"""AsyncLLM: streams, the bound of its queue, deadlines, cancellation, drain."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.llm import LLM
from rlt_core.api.outputs import Increment
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import (
    BusyError,
    ConflictError,
    DeadlineError,
    OptionError,
    RequestError,
    StageError,
)
from tests.app_kit import FAST, SLOWLY, run, scripted, until
from tests.scripted_engine import BROKEN, REFUSE, SLOW

LONG = SamplingParams(max_tokens=4000, ignore_eos=True)


def params(count: int = 4, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, seed=1, **more)  # type: ignore[arg-type]  # fields of any type


def test_a_stream_gives_what_generate_gives() -> None:
    """Increments were lost between two ticks, or the answers of siblings mixed up."""

    async def scene() -> None:
        async with scripted() as llm:
            got: dict[int, list[int]] = {}
            async with llm.stream(FAST, params(9, n=3, logprobs=0)) as stream:
                async for part in stream:
                    assert part.logprobs is not None
                    assert len(part.logprobs) == len(part.token_ids)
                    got.setdefault(part.index, []).extend(part.token_ids)
            whole = await llm.generate(FAST, params(9, n=3))
            expected = {answer.index: answer.token_ids for answer in whole.outputs}
            assert got == expected
            assert stream.output.finished
            assert [a.token_ids for a in stream.output.outputs] == list(expected.values())

    run(scene())
    with LLM(engine_factory="tests.scripted_engine:build", in_process=True) as llm:
        (answer,) = llm.generate([FAST], params(9))
    assert answer.outputs[0].token_ids == [5, 6, 7] * 3


def test_scores_are_those_of_llm() -> None:
    """The score of a text was read before its last position had come."""

    async def scene() -> list[float | None]:
        async with scripted() as llm:
            return (await llm.score([1, 2, 3, 4])).logprobs

    with LLM(engine_factory="tests.scripted_engine:build", in_process=True) as llm:
        assert run(scene()) == llm.score([1, 2, 3, 4]).logprobs


@pytest.mark.parametrize(
    ("prompt", "field"),
    [({"prompt_token_ids": []}, "prompt_token_ids"), ("text", "prompt"), ({"x": 1}, "prompt")],
)
def test_a_refused_request_leaves_nothing_behind(prompt: object, field: str) -> None:
    """A place in the queue was lost with each refused request, until none was left."""

    async def scene() -> None:
        async with scripted() as llm:
            with pytest.raises(RequestError) as found:
                await llm.generate(prompt, params())  # type: ignore[arg-type]  # wrong on purpose
            assert found.value.field == field
            assert llm.num_open == 0
            assert len((await llm.generate(FAST, params())).outputs[0].token_ids) == 4

    run(scene())


@pytest.mark.parametrize("first", [REFUSE, BROKEN])
def test_a_request_that_the_stage_fails_raises(first: int) -> None:
    """A request that failed in the stage was waited for for ever; its siblings went on."""

    async def scene() -> None:
        async with scripted() as llm:
            with pytest.raises(RequestError):
                await llm.generate({"prompt_token_ids": [first, 2]}, params(n=2))
            assert llm.num_open == 0
            assert (await llm.stats()).slots_used == 0

    run(scene())


def test_the_queue_has_a_bound() -> None:
    """Requests beyond all bounds were queued until memory ran out (no 429)."""

    async def scene() -> None:
        async with scripted(max_waiting=2) as llm:
            streams = [llm.stream(SLOWLY, LONG) for _ in range(9)]
            for stream in streams:
                await stream.open()
            pair = llm.stream(SLOWLY, params(n=2))
            with pytest.raises(BusyError) as found:
                await pair.open()
            assert (found.value.num_open, found.value.limit) == (9, 10)
            assert found.value.retry_after >= 1
            assert (llm.num_running, llm.num_waiting) == (8, 1)
            with pytest.raises(RequestError, match="at most 10"):
                await llm.generate(FAST, params(n=11))
            for stream in streams:
                stream.close()
            assert llm.num_open == 0
            assert (await llm.generate(FAST, params())).finished

    run(scene())


@pytest.mark.parametrize("whole", [False, True])
def test_a_deadline_ends_a_request(whole: bool) -> None:
    """A request ran on, slot and all, after the time that its client had given it."""

    async def scene() -> None:
        async with scripted() as llm:
            got: list[Increment] = []

            async def read() -> None:
                async for part in llm.stream(SLOWLY, LONG, deadline=0.3):
                    got.append(part)

            with pytest.raises(DeadlineError) as found:
                await (llm.generate(SLOWLY, LONG, deadline=0.3) if whole else read())
            assert found.value.seconds == 0.3
            assert whole or got  # what had come was given
            await _nothing_left(llm)
            # Its timer must not end a later one, nor one that ended in time.
            assert (await llm.generate(FAST, params(), deadline=0.2)).finished
            await asyncio.sleep(0.25)
            assert llm.ready

    run(scene())


def test_scores_have_deadlines() -> None:
    """Only generated answers were timed."""

    async def scene() -> None:
        async with scripted() as llm:
            streams = [await llm.stream(SLOWLY, LONG).open() for _ in range(6)]
            with pytest.raises(DeadlineError):  # a tick takes 0.3 s
                await llm.score([SLOW, 5, 6], deadline=0.05)
            for stream in streams:
                stream.close()
            await _nothing_left(llm)

    run(scene())


def test_a_long_step_in_this_process_is_no_hang() -> None:
    """It was ended for not having answered while it ran, by the thread that it ran in."""

    async def scene() -> None:
        async with scripted(hang_s=0.02) as llm:  # a tick takes 0.05 s
            output = await llm.generate(SLOWLY, SamplingParams(max_tokens=3, ignore_eos=True))
            assert output.finished
            assert llm.num_restarts == 0

    run(scene())


@pytest.mark.parametrize("how", ["cancel", "close", "drop", "drop inside", "leave"])
def test_who_goes_away_aborts(how: str) -> None:
    """A client that had gone kept its slot until max_tokens, however it had gone. A garbage
    collection drops streams anywhere: one inside the lock of all requests hung them all."""

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
            elif how.startswith("drop"):
                await anext(stream)
                gone = weakref.ref(stream)
                with llm._started.reading() if how == "drop inside" else nullcontext():
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
            await _nothing_left(llm)

    run(scene())


@pytest.mark.parametrize("where", ["open", "read", "score"])
def test_a_dropped_coroutine_aborts(where: str) -> None:
    """A coroutine that nobody awaits any more is ended by a garbage collection: one inside the
    lock of all requests hung them all."""

    async def scene() -> None:
        async with scripted() as llm:
            stream = llm.stream(SLOWLY, LONG)

            async def read() -> None:
                async with stream:
                    async for _ in stream:
                        pass

            if where == "read":
                await stream.open()
            coroutine = llm.score([SLOW, 5, 6]) if where == "score" else read()
            coroutine.send(None)  # as far as it goes without waiting
            assert llm.num_open == 1
            with llm._started.reading():
                del coroutine
                gc.collect()
            await asyncio.sleep(0)  # the loop aborts what was dropped
            await _nothing_left(llm)

    run(scene())


def test_cancelling_while_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request cancelled while its text was tokenized was sent all the same, and ran alone."""

    async def scene() -> None:
        go, reached = threading.Event(), threading.Event()
        async with scripted() as llm:
            requests = llm._started
            before = requests._batch

            def slow(*args: object) -> object:
                reached.set()
                go.wait(10)
                return before(*args)  # type: ignore[arg-type]  # passed on as they came

            monkeypatch.setattr(requests, "_batch", slow)
            task = asyncio.ensure_future(llm.generate(SLOWLY, LONG))
            await until(reached.is_set)
            task.cancel()
            await asyncio.wait({task})
            go.set()
            await asyncio.sleep(0.1)
            await _nothing_left(llm)
            assert (await llm.stats()).ticks == 0

    run(scene())


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


def test_stats_count_what_ran() -> None:
    """Row-loops and outputs by depth were those of requests, not of rows."""

    async def scene() -> None:
        async with scripted() as llm:
            await llm.generate(FAST, params(6, n=2))  # depths 1 2 3 4 1 2, twice
            stats = await llm.stats()
            assert stats.outputs == [4, 4, 2, 2]
            assert stats.row_loops == [12, 8, 4, 2]
            assert stats.slots_used == 0

    run(scene())


@pytest.mark.parametrize("closed", [False, True])
def test_another_event_loop_is_refused(closed: bool) -> None:
    """A second asyncio.run with the same object ended in "Event loop is closed", with a traceback
    from the thread that reads the stage; requests waited for ever."""
    llm = scripted()
    faults: list[object] = []
    before, threading.excepthook = threading.excepthook, faults.append
    first = asyncio.new_event_loop()

    async def again() -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: llm.generate(FAST, params()),
            lambda: llm.score([1, 2, 3]),
            lambda: llm.encode("text"),
            lambda: llm.stats(),
            lambda: llm.stream(FAST, params()).open(),
        ]
        for call in calls:
            with pytest.raises(StageError, match="belongs to the event loop that `start` ran in"):
                await call()
        await asyncio.sleep(1.2)  # the reading thread asks the stage how it is
        await llm.start()
        assert (await llm.generate(FAST, params())).finished
        await llm.close()

    try:
        first.run_until_complete(llm.start())
        lasting = first.create_task(llm.stream(SLOWLY, LONG).open())
        first.run_until_complete(lasting)
        if closed:
            first.close()
        run(again())
    finally:
        threading.excepthook = before
        first.close()
    assert faults == []
    assert [t for t in threading.enumerate() if t.name.startswith("rlt-stage")] == []


async def _nothing_left(llm: AsyncLLM) -> None:
    assert llm.num_open == 0
    while (await llm.stats()).slots_used:
        await asyncio.sleep(0.01)
    assert not llm._started.open._inboxes
