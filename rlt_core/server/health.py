"""Routes for those who watch over the server; the only ones that need no key."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import responses, unready

router = APIRouter(tags=["health"])


class Live(BaseModel):
    """The process answers."""

    status: Literal["live"] = "live"


class Ready(BaseModel):
    """A stage serves, and requests are taken."""

    status: Literal["ready"] = "ready"


@router.get("/health", responses=responses())
@router.get("/health/live", responses=responses())
async def live() -> Live:
    """200 while the process runs, also while the model is loaded or a stage started again."""
    return Live()


@router.get("/health/ready", responses=responses(503))
async def ready(context: Annotated[ServerContext, Depends(context_of)]) -> Ready:
    """200 when requests are served, else 503 with the reason."""
    if not context.llm.ready:
        raise unready(context.llm.reason)
    return Ready()
