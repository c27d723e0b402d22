"""Runs the application until a signal: binds, loads the model, serves, drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.contract.errors import OptionError, RltError
from rlt_core.server.app import create_app
from rlt_core.server.protocol import limited_protocol
from rlt_core.server.settings import ServerSettings

INTERRUPTED = 130
_CLOSE_S = 5
# Longer than clients keep an idle connection (httpx, and so openai's: 5 s, as uvicorn by default):
# whoever closes it first must not be the one that gets the next request.
_KEEP_ALIVE_S = 75


def bind(settings: ServerSettings) -> socket.socket:
    """A listening socket; OptionError where the address is in use or not this machine's."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise OptionError("--host", settings.host, str(error.strerror)) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            reason = "no address of this machine"
            fix = "Fix: --host 127.0.0.1, or --host 0.0.0.0 for every address that it has"
            raise OptionError("--host", settings.host, reason, fix) from error
        reason = f"{settings.host} cannot be listened to there: {error.strerror}"
        fix = f"Fix: --port {settings.port + 1 if settings.port < 65535 else 0}, or --port 0"
        raise OptionError("--port", settings.port, reason, fix) from error
    return listening


class Service:
    """One server and its model.

    The first SIGINT or SIGTERM drains: no new requests, those in work get `drain_s`. The second
    ends what is in work at once, the third the process.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings, listening: socket.socket) -> None:
        self._llm, self._settings, self._listening = llm, settings, listening
        self._server = _Server(self._config())
        self._on_end: Callable[[int], None] = _unsaid
        self._num_signals = 0
        self._ending: asyncio.Task[None] | None = None

    async def run(
        self, ready: Callable[[], None], on_end: Callable[[int], None] | None = None
    ) -> int:
        """Serves until it is told to stop, and gives the exit code; `ready` is called once the
        model is loaded, `on_end` at the first signal, with the number of answers in work. An
        RltError when it cannot be."""
        self._on_end = on_end or _unsaid
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        try:
            await self._llm.start()
            ready()
        except BaseException as error:
            self._server.should_exit = True
            # A model that is told to end while it loads says so as an error.
            if not (self._num_signals and isinstance(error, RltError)):
                raise
        finally:
            await serving
            if self._ending is not None:
                await self._ending
            await self._llm.close()
        return INTERRUPTED if self._num_signals > 1 else 0

    def stop(self) -> None:
        """What a signal does; may be called again."""
        self._on_signal()

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals == 1:
            self._on_end(self._llm.num_open)
            self._ending = asyncio.create_task(self._drain())
        elif self._num_signals == 2:
            self._llm.hurry()
        else:
            os._exit(INTERRUPTED)

    async def _drain(self) -> None:
        await self._llm.close(self._settings.drain_s)
        self._server.should_exit = True

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            create_app(self._llm, settings),
            # h11 and not httptools: only it bounds the size of a request's head.
            http=limited_protocol(settings.read_timeout_s),
            h11_max_incomplete_event_size=2 * settings.max_header_bytes,
            ws="none",
            lifespan="off",
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )


def _unsaid(num_open: int) -> None:
    """Nobody is told that it ends."""


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: the model is drained before the connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
