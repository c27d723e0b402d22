"""A server that is told to stop: what its owner hears, and that a second signal ends it at once."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from rlt_core.server.run import INTERRUPTED, Service, bind
from rlt_core.server.settings import ServerSettings
from tests.app_kit import SLOWLY, run, scripted, until

BODY = {"prompt": SLOWLY["prompt_token_ids"], "max_tokens": 3000, "ignore_eos": True}


@pytest.mark.parametrize("num_requests", [0, 2])
def test_the_first_signal_tells_how_many_answers_are_waited_for(num_requests: int) -> None:
    """Ctrl-C printed nothing for up to 30 s: it looked as if the server did not listen to it."""

    async def scene() -> None:
        llm, settings, told = scripted(), ServerSettings(port=0, drain_s=30), list[int]()
        listening = bind(settings)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/completions"
        service, ready = Service(llm, settings, listening), asyncio.Event()
        serving = asyncio.create_task(service.run(ready.set, told.append))
        await ready.wait()
        async with httpx.AsyncClient(timeout=30) as client:
            asked = [asyncio.create_task(client.post(url, json=BODY)) for _ in range(num_requests)]
            await until(lambda: llm.num_open == num_requests)
            service.stop()
            assert told == [num_requests]
            began = time.monotonic()
            if num_requests:
                await asyncio.sleep(0.2)
                assert not serving.done()
                service.stop()
            assert await serving == (INTERRUPTED if num_requests else 0)
            assert time.monotonic() - began < 10
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [
                503
            ] * num_requests
        assert told == [num_requests], "the second signal is no news"

    run(scene())
