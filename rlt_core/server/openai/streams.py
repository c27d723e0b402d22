"""The streams of one HTTP request, one for each prompt, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from rlt_core.api.async_stream import AsyncStream
from rlt_core.api.outputs import Increment
from rlt_core.server.openai.renamed import Renamed

_WAITING = 64  # increments that may wait for a slow reader


class Streams:
    """Opens all or none; leaving it aborts what still runs.

    names: where each prompt is in the request, as errors say it. The errors are those of
    `AsyncStream.open` and of its iteration.
    """

    def __init__(self, streams: Sequence[AsyncStream], names: Sequence[str]) -> None:
        self._streams, self._names = streams, names

    def __getitem__(self, place: int) -> AsyncStream:
        return self._streams[place]

    async def open(self) -> Streams:
        """Sends all requests; itself."""
        self._streams[0].check_whole(sum(stream.params.n for stream in self._streams))
        try:
            for stream, name in zip(self._streams, self._names, strict=True):
                with Renamed.prompt(name):
                    await stream.open()
        except BaseException:
            self.close()
            raise
        return self

    async def increments(self) -> AsyncIterator[tuple[int, Increment]]:
        """(place of the prompt, increment) as they come."""
        if len(self._streams) == 1:
            async for increment in self._streams[0]:
                yield 0, increment
            return
        queue: asyncio.Queue[tuple[int, Increment] | BaseException | None]
        queue = asyncio.Queue(_WAITING)
        tasks = [asyncio.ensure_future(_pump(*each, queue)) for each in enumerate(self._streams)]
        try:
            num_open = len(tasks)
            while num_open:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    num_open -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Aborts what still runs."""
        for stream in self._streams:
            stream.close()

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _pump(
    place: int,
    stream: AsyncStream,
    queue: asyncio.Queue[tuple[int, Increment] | BaseException | None],
) -> None:
    try:
        async for increment in stream:
            await queue.put((place, increment))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
