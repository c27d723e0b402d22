"""What the OpenAI routes answer from: an engine, its names, its format of tool calls."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from rlt_core.api.async_llm import AsyncLLM
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
    the one that the chat template shows. deadline: seconds a request may take, None for any.
    """

    engine: AsyncLLM
    names: Sequence[str]
    version: str
    tool_format: ToolFormat | None = None
    deadline: float | None = None

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
            self.version,
            report.model,
            report.dtype,
            report.device,
            report.kv_layout,
            report.exit_policy,
            report.exit_mode,
            report.loops,
        )
        return f"fp_{zlib.crc32(repr(choice).encode()):08x}"
