"""A server on a free port of this machine, for tests that speak HTTP to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.server.app import create_app
from rlt_core.server.settings import ServerSettings

START_S = 50.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where it listens, and the engine behind it."""

    url: str
    llm: AsyncLLM


@contextmanager
def running(llm: AsyncLLM, **settings: Any) -> Iterator[RunningServer]:
    """The server of an engine that is not started yet, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = create_app(llm, ServerSettings(port=port, served_names=("demo",), **settings))
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        ready, failed = threading.Event(), list[BaseException]()

        async def serve() -> None:
            async with llm:
                ready.set()
                await server.serve(sockets=[listener])

        def work() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=work, name="server", daemon=True)
        thread.start()
        try:
            assert ready.wait(START_S), "the engine did not start"
            if failed:
                raise failed[0]
            yield RunningServer(f"http://127.0.0.1:{port}", llm)
        finally:
            server.should_exit = True
            thread.join(START_S)
