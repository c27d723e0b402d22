"""Servers and their models for tests: in this process, or on a port of their own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.server.keys import ApiKeys
from rlt_core.server.logs import JsonFormatter
from rlt_core.server.run import Service, bind
from rlt_core.server.settings import ServerSettings
from tests.scripted_engine import SLOW

T = TypeVar("T")
WITHIN_S = 20.0
KEY = "the-right-key-of-this-test"
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
FAST = {"prompt_token_ids": [5, 6, 7]}
SLOWLY = {"prompt_token_ids": [SLOW, 6, 7]}  # 0.05 s a token and request


def run(work: Awaitable[T]) -> T:
    """Runs a test's coroutine on an event loop of its own."""

    async def limited() -> T:
        return await asyncio.wait_for(work, 50)

    return asyncio.run(limited())


def scripted(builder: str = "build", **options: Any) -> AsyncLLM:
    """An AsyncLLM of the scripted engine, in this process."""
    values: dict[str, Any] = {"in_process": True, **options}
    return AsyncLLM(engine_factory=f"tests.scripted_engine:{builder}", **values)


def params(count: int = 4, **more: Any) -> SamplingParams:
    """A seeded answer of so many tokens."""
    return SamplingParams(max_tokens=count, ignore_eos=True, seed=1, **more)


def settings(**changes: Any) -> ServerSettings:
    """Settings with one key."""
    return ServerSettings(**{"keys": ApiKeys([KEY]), **changes})


def client_of(app: FastAPI, key: str | None = KEY, **options: Any) -> httpx.AsyncClient:
    """A client that calls the application without a network."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    return httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers=headers, **options
    )


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """(method, path) of every route, with something in the places of parameters."""
    for route in _flat(app.routes):
        path = str(getattr(route, "path", "/")).replace("{model:path}", "some/model")
        for method in sorted(getattr(route, "methods", None) or ("GET",)):
            yield method, path


def _flat(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from _flat(router.routes)


async def until(condition: Callable[[], object]) -> None:
    """Returns once the condition holds; AssertionError when it does not within 20 s."""
    end = asyncio.get_running_loop().time() + WITHIN_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it never came true"
        await asyncio.sleep(0.005)


async def nothing_left(llm: AsyncLLM) -> None:
    """Returns once no slot is used, for nobody is served."""
    assert llm.num_open == 0
    while (await llm.stats()).slots_used:
        await asyncio.sleep(0.01)
    assert not llm._started.open._inboxes


@asynccontextmanager
async def listening(llm: AsyncLLM, chosen: ServerSettings) -> AsyncIterator[str]:
    """A real server on a free port of this machine; its URL."""
    socket = bind(chosen)
    port = socket.getsockname()[1]
    service = Service(llm, chosen, socket)
    ready = asyncio.Event()
    serving = asyncio.create_task(service.run(ready.set))
    try:
        await asyncio.wait(
            {serving, asyncio.ensure_future(ready.wait())}, return_when="FIRST_COMPLETED"
        )
        assert ready.is_set(), await serving
        yield f"{'https' if chosen.ssl_certfile else 'http'}://127.0.0.1:{port}"
    finally:
        service.stop()
        await serving


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """What the server logs meanwhile, a table for each line."""
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    handler, logger = Keep(), logging.getLogger("rlt")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
