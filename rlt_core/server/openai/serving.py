"""What the OpenAI routes answer from: an engine, its names, its format of tool calls."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.chat_templates import ChatTemplate
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.server.context import ServerContext
from rlt_core.server.tool_calls.parts import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every answer of one request begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """names: what `model` may say, the first is the one that answers carry. tool_format: None for
    the one that the chat template shows. chat_template: None for the checkpoint's own. deadline:
    seconds a request may take, None for any. max_prompts: prompts of a request. max_tokens: of an
    answer, None for what the model can.
    """

    engine: AsyncLLM
    names: Sequence[str]
    tool_format: ToolFormat | None = None
    chat_template: ChatTemplate | None = None
    deadline: float | None = None
    max_prompts: int = 128
    max_tokens: int | None = None

    @classmethod
    def of(cls, context: ServerContext) -> Serving:
        """An application's."""
        settings = context.settings
        return cls(
            engine=context.llm,
            names=context.names,
            tool_format=context.tool_format,
            chat_template=context.chat_template,
            deadline=settings.request_timeout_s,
            max_prompts=settings.max_prompts,
            max_tokens=settings.max_tokens,
        )

    def limited(self, params: SamplingParams, num_prompts: int = 1) -> SamplingParams:
        """The same within the server's limits; RequestError for what asks for more."""
        if num_prompts > self.max_prompts:
            reason = f"{num_prompts} prompts; a request may have {self.max_prompts}"
            raise RequestError("prompt", reason)
        if self.max_tokens is None:
            return params
        if params.max_tokens is not None and params.max_tokens > self.max_tokens:
            reason = f"{params.max_tokens}; an answer here may have {self.max_tokens}"
            raise RequestError("max_tokens", reason)
        return params.changed(max_tokens=params.max_tokens or self.max_tokens)

    def heading(self, prefix: str) -> Heading:
        """A new answer's, with an id of its own."""
        return Heading(
            id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.names[0],
            system_fingerprint=self.fingerprint,
        )

    @property
    def fingerprint(self) -> str:
        """The same for engines that give the same tokens for the same seed, as far as the choice
        tells."""
        report = self.engine.report
        choice = (
            metadata.version("rlt-core"),
            report.model,
            report.dtype,
            report.device,
            report.kv_layout,
            report.exit_policy,
            report.exit_mode,
            report.loops,
        )
        return f"fp_{zlib.crc32(repr(choice).encode()):08x}"
