"""Work that ends with the client's interest in it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from rlt_core.server.client_limits import ClientGone

RETRY_S = 0.05
T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. When the client leaves before, `work` is cancelled and ClientGone
    raised, which needs no answer. The request's body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("it left")
        return task.result()
    finally:
        gone.cancel()
        await _end(task)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels until it takes: `wait_for` of Python 3.10 and 3.11 loses a cancellation that comes
    in the moment in which what it waits for ends."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=RETRY_S)
    if not task.cancelled():
        task.exception()  # looked at; it is raised where the work is waited for, or nowhere


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
