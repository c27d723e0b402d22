"""The routes of the OpenAI API that make text."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from rlt_core.api.structured import KINDS
from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import responses
from rlt_core.server.models import check_model
from rlt_core.server.openai.answering import answer
from rlt_core.server.openai.chat import ChatRun
from rlt_core.server.openai.chat_request import ChatRequest
from rlt_core.server.openai.chat_response import ChatCompletion
from rlt_core.server.openai.completion_request import CompletionRequest
from rlt_core.server.openai.completion_response import Completion
from rlt_core.server.openai.completions import CompletionRun
from rlt_core.server.openai.renamed import PROMPT_NAMES, Renamed
from rlt_core.server.openai.serving import Serving

router = APIRouter(tags=["OpenAI"])
# What the engine calls otherwise than the routes do.
_FORMS = ("structured", *KINDS)
_COMPLETION_NAMES = {
    **dict.fromkeys(PROMPT_NAMES, "prompt"),
    **dict.fromkeys(_FORMS, "structured_outputs"),
}
_CHAT_NAMES = {"prompt": "messages", "logprobs": "top_logprobs"}
Context = Annotated[ServerContext, Depends(context_of)]


def _answers(model: type) -> dict[int | str, dict[str, Any]]:
    found = {
        "model": model,
        "description": "The answers; with stream=true their chunks, as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return {200: found, **responses(400, 404, 429, 503, 504)}


@router.post(
    "/v1/completions",
    summary="Go on with texts",
    response_class=Response,
    responses=_answers(Completion),
)
async def completions(body: CompletionRequest, request: Request, context: Context) -> Response:
    """One answer, or n, for each prompt."""
    if body.model is not None:
        check_model(context, body.model)
    with Renamed({**body.part_names, **_COMPLETION_NAMES}):
        run = CompletionRun(Serving.of(context), body)
        return await answer(run, request, stream=bool(body.stream))


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    response_class=Response,
    responses=_answers(ChatCompletion),
)
async def chat_completions(body: ChatRequest, request: Request, context: Context) -> Response:
    """One answer, or n, of the assistant: text, calls of tools, or both."""
    if body.model is not None:
        check_model(context, body.model)
    forms = dict.fromkeys(_FORMS, body.form_field)
    with Renamed({**body.part_names, **_CHAT_NAMES, **forms}):
        run = ChatRun(Serving.of(context), body)
        return await answer(run, request, stream=bool(body.stream))
