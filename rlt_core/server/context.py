"""What every route can reach: the model, the settings, the counters."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import HTTPConnection

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.chat_templates import ChatTemplate
from rlt_core.server.metrics import ServerMetrics
from rlt_core.server.settings import ServerSettings
from rlt_core.server.tool_calls.parts import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """One application's; `created` is when it was made, in seconds since 1970. tool_format: how the
    model writes tool calls; None for what its chat template shows. chat_template: what writes
    conversations; None for the checkpoint's own."""

    llm: AsyncLLM
    settings: ServerSettings
    metrics: ServerMetrics
    tool_format: ToolFormat | None = None
    chat_template: ChatTemplate | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called in requests; the first is what answers say."""
        return self.settings.served_names or (self.llm.name,)

    @property
    def has_chat(self) -> bool:
        """Whether conversations can be written."""
        given = self.chat_template is not None and self.llm.tokenizer is not None
        return given or self.llm.chat.available


def context_of(connection: HTTPConnection) -> ServerContext:
    """The context of the application that a request came to: `Depends(context_of)`, or called."""
    return cast(ServerContext, connection.app.state.context)


def request_id_of(connection: HTTPConnection) -> str:
    """The request's id, as it is in the log and in X-Request-Id."""
    return cast(str, connection.scope["state"]["request_id"])


def note(connection: HTTPConnection, **fields: str | int | float | None) -> None:
    """Adds fields to the request's line in the access log: counts and names, never text of a
    user."""
    connection.scope["state"]["log"].update(fields)
