"""The route that Prometheus reads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import responses

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={**responses(), 200: {"content": {"text/plain": {}}, "description": "Metrics"}},
)
async def metrics(context: Annotated[ServerContext, Depends(context_of)]) -> Response:
    """Counters, gauges and histograms, in Prometheus's text format."""
    llm = context.llm
    stats = await llm.stats()
    text = context.metrics.render(stats, ready=llm.ready, num_restarts=llm.num_restarts)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
