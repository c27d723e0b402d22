"""The one event loop that an AsyncLLM belongs to, for callers of it and for other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from rlt_core.contract.errors import StageError


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """StageError in another event loop than this one, or once it is closed."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:  # what is made before a loop runs may still be used in the right one
        running = own
    if running is not own or own.is_closed():
        raise StageError(
            "this AsyncLLM belongs to the event loop that `start` ran in, and "
            + ("that one is closed" if own.is_closed() else "another one is running")
            + "\nFix: everything in one asyncio.run, or `await llm.start()` in this loop too"
        )


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Calls something on the loop, from any thread; not if it is closed, where nobody waits."""
    with contextlib.suppress(RuntimeError):  # it may be closed between a question and the call
        loop.call_soon_threadsafe(call, *args)
