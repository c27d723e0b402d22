"""Routes that say what is served."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import ApiError, responses

router = APIRouter(tags=["models"])


class Version(BaseModel):
    """Of the server."""

    version: str


class ModelCard(BaseModel):
    """A name that the model answers to; what is not known before it is loaded is null.

    max_model_len: tokens of a request, prompt and answer. loops: the model's own depth. max_depth:
    the most loops that a request may ask for.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["rlt"] = "rlt"
    max_model_len: int | None = None
    loops: int | None = None
    max_depth: int | None = None
    exit_policy: str | None = None


class ModelList(BaseModel):
    """All names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/version", responses=responses())
async def version() -> Version:
    """The version of rlt-core."""
    return Version(version=metadata.version("rlt-core"))


@router.get("/v1/models", responses=responses())
async def models(context: Annotated[ServerContext, Depends(context_of)]) -> ModelList:
    """The names of the model."""
    return ModelList(data=[_card(context, name) for name in context.names])


@router.get("/v1/models/{model:path}", responses=responses(404))
async def model(model: str, context: Annotated[ServerContext, Depends(context_of)]) -> ModelCard:
    """One of the names."""
    check_model(context, model)
    return _card(context, model)


def check_model(context: ServerContext, name: str) -> None:
    """A 404 for a model that is not served here."""
    if name not in context.names:
        served = ", ".join(context.names)
        message = f"the model '{name[:100]}' is not served here; this is {served}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _card(context: ServerContext, name: str) -> ModelCard:
    report = context.llm.known_report
    if report is None:
        return ModelCard(id=name, created=context.created)
    return ModelCard(
        id=name,
        created=context.created,
        max_model_len=report.max_len,
        loops=report.loops,
        max_depth=report.max_depth,
        exit_policy=report.exit_policy,
    )
