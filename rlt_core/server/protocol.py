"""HTTP/1.1 of uvicorn, with a limit on how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


def limited_protocol(head_timeout_s: float) -> type[asyncio.Protocol]:
    """A protocol that closes connections whose next request's head is not whole in time: one that
    sends a byte now and then would hold its connection for ever."""

    class LimitedProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            if not self._is_busy and self._head_timer is None:
                self._wait_for_head()
            super().data_received(data)
            if self._is_busy:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        @property
        def _is_busy(self) -> bool:
            """Whether a request is being answered: its head was whole."""
            cycle: RequestResponseCycle | None = self.cycle  # uvicorn says it is never None
            return cycle is not None and not cycle.response_complete

        def _wait_for_head(self) -> None:
            self._head_timer = self.loop.call_later(head_timeout_s, self._too_slow)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _too_slow(self) -> None:
            self._head_timer = None
            if not self._is_busy and not self.transport.is_closing():
                self.transport.close()

    return LimitedProtocol
