"""The HTTP application: middleware, errors, and one router per file."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.contract.errors import RltError
from rlt_core.server import engine, errors, health, metrics_route, models, page_files
from rlt_core.server.client_limits import ClientLimits
from rlt_core.server.context import ServerContext
from rlt_core.server.key_guard import KeyGuard
from rlt_core.server.metrics import ServerMetrics
from rlt_core.server.openai import routes, tokens
from rlt_core.server.openai.served_ranges import with_served_ranges
from rlt_core.server.request_log import RequestLog
from rlt_core.server.settings import ServerSettings
from rlt_core.server.tool_calls.formats import named_format
from rlt_core.server.tracing import make_tracer

# In the order of the generated OpenAPI. Every route is behind the keys (key_guard), whatever it
# does.
ROUTERS = (
    health.router,
    models.router,
    engine.router,
    routes.router,
    tokens.router,
    metrics_route.router,
    page_files.router,
)


class RltApp(FastAPI):
    """Its OpenAPI says what the engine behind it takes."""

    def openapi(self) -> dict[str, Any]:
        """The schema, as /openapi.json gives it."""
        return with_served_ranges(super().openapi(), self.state.context)


def create_app(llm: AsyncLLM, settings: ServerSettings) -> FastAPI:
    """The application. Starts and ends nothing: `llm` may be started before or after, and is
    unready till then. It counts what passes through `llm`. RltError for a tool parser or a chat
    template that is not there."""
    names = settings.served_names or (llm.name,)
    metrics = ServerMetrics(names[0])
    llm.observe(metrics)
    # No /docs: its page loads scripts from another host.
    app = RltApp(title="rlt", version=metadata.version("rlt-core"), docs_url=None, redoc_url=None)
    parser, template = settings.tool_parser, settings.chat_template
    app.state.context = ServerContext(
        llm=llm,
        settings=settings,
        metrics=metrics,
        tool_format=None if parser is None else named_format(parser),
        # Read once: a file that is gone, or changed, while it serves changes no answer.
        chat_template=None if template is None else llm.chat.checked_template(template),
    )
    for router in ROUTERS:
        app.include_router(router)
    _handle_errors(app)
    _add_middleware(app, settings, metrics)
    return app


def _handle_errors(app: FastAPI) -> None:
    app.add_exception_handler(errors.ApiError, errors.on_api_error)
    app.add_exception_handler(RltError, errors.on_rlt_error)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_exception_handler(RequestValidationError, errors.on_invalid)


def _add_middleware(app: FastAPI, settings: ServerSettings, metrics: ServerMetrics) -> None:
    """From the inside out: what is added last sees a request first."""
    app.add_middleware(ClientLimits, settings=settings)
    app.add_middleware(KeyGuard, keys=settings.keys)
    if settings.cors_origins:
        # Outside the guard: a browser asks for permission without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(
        RequestLog,
        metrics=metrics,
        tracer=make_tracer(settings.otlp_endpoint),
        log_prompts=settings.log_prompts,
    )
