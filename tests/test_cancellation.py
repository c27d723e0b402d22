"""A request whose client has gone is in no later tick, whatever phase it was in (issue 6)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.async_stream import AsyncStream
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.plugins.model_folder import find_model_folder
from tests.app_kit import run, until
from tests.watched_engine import DIARY

LONG = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.0)
BRIEF = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.0)


def demo(**options: object) -> AsyncLLM:
    values: dict[str, Any] = {"max_num_seqs": 1, "max_num_tokens": 16, **options}
    return AsyncLLM(
        find_model_folder(None),
        engine_factory="tests.watched_engine:build",
        in_process=True,
        **values,
    )


def prompt(length: int, first: int = 5) -> dict[str, object]:
    return {"prompt_token_ids": [first + i % 20 for i in range(length)]}


def ticks_of(request_id: int) -> int:
    return sum(kind == "tick" and request_id in ids for kind, ids in list(DIARY))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("phase", ["queued", "prompt", "decoding", "whole"])
def test_no_tick_after_a_cancellation_contains_the_request(phase: str) -> None:
    """A request ran on after its client had gone: in the queue, in its prompt, while it decoded,
    or because nobody watches a client that waits for a whole answer."""

    async def scene() -> None:
        async with demo() as llm:
            other: asyncio.Future[RequestOutput] | None = None
            if phase == "queued":
                other = asyncio.ensure_future(llm.generate(prompt(4), BRIEF))
                await until(lambda: ticks_of(0))
            length = 400 if phase == "prompt" else 4
            limits = SamplingParams(max_tokens=100, ignore_eos=True) if length > 4 else LONG
            victim = int(phase == "queued")
            task: asyncio.Future[Any]
            if phase == "whole":
                task = asyncio.ensure_future(llm.generate(prompt(length), limits))
                await until(lambda: ticks_of(victim) > 20)
            else:
                stream = llm.stream(prompt(length), limits)
                await stream.open()
                if phase == "prompt":
                    await until(lambda: ticks_of(victim))
                elif phase == "decoding":
                    await anext(stream)
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                if phase == "decoding":
                    await task
                    task = asyncio.ensure_future(_read(stream))
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            await until(lambda: ("abort", frozenset({victim})) in DIARY)
            if other is not None:
                assert ticks_of(victim) == 0
                assert len((await other).outputs[0].token_ids) == 60
            began = time.perf_counter()
            while (await llm.stats()).pages_used:
                await asyncio.sleep(0)
            print(f"{phase}: pages free {1000 * (time.perf_counter() - began):.1f} ms later")
            at = DIARY.index(("abort", frozenset({victim})))
            assert all(victim not in ids for kind, ids in DIARY[at:] if kind == "tick")
            assert llm.num_open == 0
            # Whoever comes next gets the slot.
            assert len((await llm.generate(prompt(4), BRIEF)).outputs[0].token_ids) == 60

    run(scene())


async def _read(stream: AsyncStream) -> None:
    async for _ in stream:
        pass
