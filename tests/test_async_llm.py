"""AsyncLLM: streams, the bound of its queue, deadlines, cancellation, drain."""

from __future__ import annotations

import asyncio

import pytest

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import Increment
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import (
    BusyError,
    DeadlineError,
    RequestError,
)
from tests.app_kit import FAST, LONG, SLOWLY, nothing_left, params, run, scripted
from tests.scripted_engine import BROKEN, REFUSE, SLOW


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
            await nothing_left(llm)
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
            await nothing_left(llm)

    run(scene())


def test_a_long_step_in_this_process_is_no_hang() -> None:
    """It was ended for not having answered while it ran, by the thread that it ran in."""

    async def scene() -> None:
        async with scripted(hang_s=0.02) as llm:  # a tick takes 0.05 s
            output = await llm.generate(SLOWLY, SamplingParams(max_tokens=3, ignore_eos=True))
            assert output.finished
            assert llm.num_restarts == 0

    run(scene())


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


def test_a_stream_is_read_by_one_task_at_a_time() -> None:
    """A second reader took the first one's place, which then waited for ever."""

    async def scene() -> None:
        async with scripted() as llm:
            stream = await llm.stream(SLOWLY, params(4)).open()

            async def read() -> int:
                return sum([len(part.token_ids) async for part in stream])

            first = asyncio.ensure_future(read())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="of one task at a time"):
                await read()
            assert await first == 4, "the first goes on"

    run(scene())
