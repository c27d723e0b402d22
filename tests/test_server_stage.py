"""A stage that is killed under the HTTP server, and a server that is told to stop (issue 6)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

import httpx
import pytest

from rlt_core.server.settings import ServerSettings
from tests.app_kit import SLOWLY, listening, logged, run, scripted, until

PROMPT = SLOWLY["prompt_token_ids"]
KEYLESS = ServerSettings(port=0, served_names=("demo",))


def body(count: int = 3000, **more: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": PROMPT, "max_tokens": count, "ignore_eos": True, **more}


async def _events(client: httpx.AsyncClient, url: str, **more: Any) -> list[dict[str, Any]]:
    async with client.stream("POST", url, json=body(stream=True, **more)) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line]
    return [json.loads(line[6:]) if line != "data: [DONE]" else {} for line in lines]


@pytest.mark.timeout(90)
def test_killing_the_stage_ends_every_request_with_an_error() -> None:
    """Clients of a server whose stage had died waited for ever; or got a 200 that just stopped."""

    async def scene() -> None:
        llm = scripted(in_process=False)
        async with listening(llm, KEYLESS) as url, httpx.AsyncClient(timeout=30) as client:
            route = f"{url}/v1/completions"
            whole = [asyncio.ensure_future(client.post(route, json=body())) for _ in range(4)]
            streams = [asyncio.ensure_future(_events(client, route)) for _ in range(4)]
            waiting = [asyncio.ensure_future(client.post(route, json=body())) for _ in range(4)]
            await until(lambda: llm.num_open == 12)
            await asyncio.sleep(0.5)
            assert llm.stage_pid is not None
            os.kill(llm.stage_pid, signal.SIGKILL)
            began = time.monotonic()
            for answer in await asyncio.gather(*whole, *waiting):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "not_ready"
                assert "retry-after" in answer.headers
            for events in await asyncio.gather(*streams):
                assert events[-1]["error"]["code"] == "not_ready"
            took = time.monotonic() - began
            print(f"all ended {took:.2f} s after the kill")
            assert took < 5
            assert (await client.get(f"{url}/health/ready")).status_code == 503
            assert (await client.post(route, json=body())).status_code == 503
            assert (await client.get(f"{url}/health")).status_code == 200
            await until(lambda: llm.ready)
            assert (await client.get(f"{url}/health/ready")).status_code == 200
            assert (await client.post(route, json=body(3))).status_code == 200

    run(scene())


@pytest.mark.timeout(90)
def test_a_server_that_stops_lets_its_answers_end() -> None:
    """Ctrl-C cut off streams that had almost come; new requests were taken meanwhile."""

    async def scene() -> None:
        llm = scripted()
        with logged() as lines:
            async with listening(llm, KEYLESS) as url, httpx.AsyncClient(timeout=30) as client:
                route = f"{url}/v1/completions"
                stream = asyncio.ensure_future(_events(client, route, max_tokens=12))
                await until(lambda: llm.num_open == 1)
                os.kill(os.getpid(), signal.SIGTERM)
                await until(lambda: not llm.ready)
                refused = await client.post(route, json=body(1))
                assert refused.status_code == 503
                assert "shutting down" in refused.json()["error"]["message"]
                events = await stream
        assert events[-1] == {}
        assert sum(len(event["choices"]) for event in events[:-1]) >= 1
        line = next(line for line in lines if line["status"] == 200)
        assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 12)
        assert line["mean_depth"] == 2.5

    run(scene())
