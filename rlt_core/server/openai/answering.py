"""A request on its way through a route: opened, then answered whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from rlt_core.contract.errors import RltError
from rlt_core.server.context import context_of, note, request_id_of
from rlt_core.server.disconnect import while_connected
from rlt_core.server.errors import api_error, internal_error
from rlt_core.server.logs import log_fault
from rlt_core.server.openai.events import DONE, EventStream, event, failure
from rlt_core.server.openai.usage import UsageCounter


class Run(Protocol):
    """The answers of one request."""

    async def open(self) -> None:
        """Sends it; what is wrong with it is raised here, before anything is answered."""
        ...

    async def whole(self) -> BaseModel:
        """All answers once they have ended."""
        ...

    def chunks(self) -> AsyncIterator[BaseModel]:
        """What the answers gain."""
        ...

    @property
    def used(self) -> UsageCounter:
        """What it has used so far."""
        ...

    def close(self) -> None:
        """Aborts what still runs."""
        ...


async def answer(run: Run, request: Request, *, stream: bool) -> Response:
    """The response; the run is closed when it ends, or when the client goes (ClientGone)."""
    if not stream:
        found = await while_connected(request, _whole(run, request))
        return Response(found.model_dump_json(exclude_unset=True), media_type="application/json")
    try:
        await while_connected(request, run.open())
    except BaseException:
        run.close()
        raise
    return EventStream(_events(run, request))


async def _whole(run: Run, request: Request) -> BaseModel:
    try:
        await run.open()
        return await run.whole()
    finally:
        _end(run, request)


async def _events(run: Run, request: Request) -> AsyncGenerator[bytes, None]:
    """The chunks, then the mark of the end; a failure is an event and ends them without it."""
    try:
        async for chunk in run.chunks():
            yield event(chunk)
        yield DONE
    except RltError as error:
        yield failure(api_error(error))
    except Exception as error:
        request_id = request_id_of(request)
        log_fault(error, request_id, with_message=context_of(request).settings.log_prompts)
        yield failure(internal_error(request_id))
    finally:
        _end(run, request)


def _end(run: Run, request: Request) -> None:
    """Nothing of it goes on; the access log says what it took."""
    run.close()
    used = run.used.usage()
    note(
        request,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        mean_depth=round(used.mean_depth, 3),
    )
