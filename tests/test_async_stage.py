"""A stage that ends, hangs or cannot start, under an AsyncLLM: nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api import served_stage, stage_keeper
from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError, StageError
from rlt_core.stage.client import StageClient
from rlt_core.stage.config import StageConfig
from rlt_core.stage.local import LocalClient
from rlt_core.stage.messages import AddRequests, Request, encode
from tests.app_kit import FAST, SLOWLY, run, scripted, until
from tests.scripted_engine import CRASH, DIE, HANG, STARTS_FILE

LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("end", ["kill", "die", "crash"])
def test_a_stage_that_ends_is_started_again(end: str) -> None:
    """Open requests waited for ever for a stage that was gone, or the server with them."""

    async def scene() -> None:
        async with scripted(in_process=False) as llm:
            waiting = [asyncio.ensure_future(llm.generate(SLOWLY, LONG)) for _ in range(5)]
            stream = llm.stream(SLOWLY, LONG)
            await anext(stream)
            first, began = llm.stage_pid, time.monotonic()
            assert first is not None
            if end == "kill":
                os.kill(first, signal.SIGKILL)
            else:
                ending = {"prompt_token_ids": [DIE if end == "die" else CRASH]}
                waiting.append(asyncio.ensure_future(llm.generate(ending, SHORT)))
            for task in waiting:
                with pytest.raises(StageError):
                    await task
            with pytest.raises(StageError):
                [part async for part in stream]
            took = time.monotonic() - began
            print(f"all failed {took:.2f} s after the end")
            assert took < 5
            assert not llm.ready
            assert "started again" in llm.reason or "lost" in llm.reason or "fault" in llm.reason
            with pytest.raises(StageError):
                await llm.generate(FAST, SHORT)
            await until(lambda: llm.ready)
            assert llm.stage_pid != first
            assert llm.num_restarts == 1
            assert len((await llm.generate(FAST, SHORT)).outputs[0].token_ids) == 4
            assert llm.num_open == 0

    run(scene())


def test_a_stage_that_hangs_is_ended() -> None:
    """A stage whose tick never came back kept its requests, and the server, for ever."""

    async def scene() -> None:
        async with scripted(in_process=False, hang_s=1.5) as llm:
            with pytest.raises(StageError, match=r"not answered for 1\.5 s"):
                await llm.generate({"prompt_token_ids": [HANG]}, SHORT)
            await until(lambda: llm.ready)
            assert (await llm.generate(FAST, SHORT)).finished

    run(scene())


def test_an_idle_stage_is_not_taken_for_hung() -> None:
    """A server that nobody asked anything for a while ended its stage."""

    async def scene() -> None:
        async with scripted(in_process=False, hang_s=1.5) as llm:
            await asyncio.sleep(2.5)
            assert llm.num_restarts == 0
            assert llm.ready

    run(scene())


def test_a_stage_that_cannot_start_again_leaves_the_server_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start-up failed in a busy loop, or the server said it was ready; it must come back."""
    monkeypatch.setattr(stage_keeper, "FIRST_WAIT_S", 0.05)
    allowed = tmp_path / "allowed"
    allowed.touch()
    monkeypatch.setenv(STARTS_FILE, str(allowed))

    async def scene() -> None:
        async with scripted("build_when_allowed", in_process=False) as llm:
            allowed.unlink()
            assert llm.stage_pid is not None
            os.kill(llm.stage_pid, signal.SIGKILL)
            await until(lambda: llm.num_restarts >= 3)
            assert not llm.ready
            assert "put the file back" in llm.reason
            with pytest.raises(StageError, match="put the file back"):
                await llm.generate(FAST, SHORT)
            allowed.touch()
            await until(lambda: llm.ready)
            assert (await llm.generate(FAST, SHORT)).finished

    run(scene())


def test_a_stage_in_this_process_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that ended it held its client: the next one's weights and pool were made beside
    those of the last."""
    clients: list[weakref.ref[LocalClient]] = []
    alive: list[int] = []

    class Cyclic(LocalClient):
        """Parts of an engine hold each other, so that only a collection frees them."""

        def __init__(self, config: StageConfig) -> None:
            alive.append(sum(client() is not None for client in clients))
            super().__init__(config)
            self.whole = self
            clients.append(weakref.ref(self))

    monkeypatch.setattr(served_stage, "LocalClient", Cyclic)

    async def scene() -> None:
        async with scripted() as llm:
            for number in (1, 2):
                with pytest.raises(StageError):
                    await llm.generate({"prompt_token_ids": [CRASH]}, SHORT)
                await until(partial(_serves_again, llm, number))
            assert (await llm.generate(FAST, SHORT)).finished

    run(scene())
    assert alive == [0, 0, 0]


def _serves_again(llm: AsyncLLM, num_restarts: int) -> bool:
    return llm.ready and llm.num_restarts == num_restarts


def test_pauses_grow_to_a_bound() -> None:
    """A stage that keeps ending was started ten times a second, or never again."""
    pauses = [stage_keeper._pause(n) for n in (1, 2, 3, 50, 5000)]
    assert pauses == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_without_restart_the_reason_stays() -> None:
    """restart=False was ignored, or left requests waiting."""

    async def scene() -> None:
        async with scripted(in_process=False, restart=False) as llm:
            with pytest.raises(StageError):
                await llm.generate({"prompt_token_ids": [DIE]}, SHORT)
            await until(lambda: "not restarted" in llm.reason)
            with pytest.raises(StageError, match="ended with status 7"):
                await llm.generate(FAST, SHORT)
            assert (await llm.stats()).slots_used == 0

    run(scene())


@pytest.mark.parametrize("in_process", [True, False])
def test_a_message_that_cannot_be_written_fails_alone(
    monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    """The thread that sends ended with the first one: its request and every later one waited until
    the stage was taken for hung."""
    kind = LocalClient if in_process else StageClient
    before = kind.send

    def send(client: Any, message: Request) -> None:
        if isinstance(message, AddRequests) and message.requests[0].max_tokens == 77:
            message.requests[0].top_k = 2**70
            encode(message)  # what a client in this process leaves out
        before(client, message)

    monkeypatch.setattr(kind, "send", send)

    async def scene() -> None:
        async with scripted(in_process=in_process) as llm:
            other = asyncio.ensure_future(llm.generate(SLOWLY, LONG.changed(max_tokens=20)))
            with pytest.raises(RequestError, match="could not be sent to the stage") as found:
                await llm.generate(FAST, SHORT.changed(max_tokens=77, n=2))
            assert "OverflowError" in str(found.value)
            assert len(str(found.value).splitlines()) <= 4
            assert len((await llm.generate(FAST, SHORT)).outputs[0].token_ids) == 4
            assert (await other).finished
            assert llm.num_open == 0
            assert llm.num_restarts == 0

    run(scene())
