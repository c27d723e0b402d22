"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlt_core.api.sampling_params import MAX_LOGPROBS, SamplingParams
from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.messages import Message
from rlt_core.server.openai.sampling_fields import SamplingFields
from rlt_core.server.openai.schema import WHOLE, Count, JsonTable, Part, Refused, Text
from rlt_core.server.openai.tools import NamedTool, ToolChoice, ToolParam, Tools

Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class TextFormat(Part):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Part):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Part):
    """A schema that the answer must have; it is always kept, strict or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    json_schema: JsonTable | None = Field(default=None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Part):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(SamplingFields):
    """A conversation to answer."""

    refused: ClassVar[Mapping[str, str]] = {
        "audio": "this server gives text only",
        "functions": "it is the older form; give tools",
        "function_call": "it is the older form; give tool_choice",
        "moderation": "nothing here moderates",
        "prediction": "no answer is predicted from a text of yours",
        "prompt_cache_options": "the cache sets its own marks",
        "verbosity": "no checkpoint reads it; say it in a message",
        "web_search_options": "nothing here searches the web",
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    max_tokens: Annotated[Count, Field(description="The older name.")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: JsonTable | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_key: Text | None = Field(
        default=None, description="All requests share one cache; it changes nothing."
    )
    prompt_cache_retention: Literal["in_memory"] | None = None
    audio: Refused
    functions: Refused
    function_call: Refused
    moderation: Refused
    prediction: Refused
    prompt_cache_options: Refused
    verbosity: Refused
    web_search_options: Refused

    @property
    def shown_tools(self) -> list[ToolParam]:
        """The tools that the model is shown: none when it must not call any."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced_tools(self) -> list[ToolParam]:
        """The tools of which one must be called; empty for a free answer."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.shown_tools if tool.function.name == name]
        return self.shown_tools if self.tool_choice == "required" else []

    @property
    def form_field(self) -> str:
        """Which field asks for the form of the answer, if any does."""
        if self.forced_tools:
            return "tool_choice"
        return "structured_outputs" if self.response_format is None else "response_format"

    @property
    def has_form(self) -> bool:
        """Whether the answer's text must be of a form."""
        return self._form() is not None or self.structured_outputs is not None

    def params(self, forced: Structured | None) -> SamplingParams:
        """forced: the form that tools give the answer. RequestError for what cannot work
        together."""
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise RequestError("max_tokens", "max_completion_tokens says something else")
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs", "needs logprobs\nFix: logprobs=true")
        return self.sampling_params(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured=forced or self._form(),
        )

    def check_tools(self) -> None:
        """RequestError for tools that cannot be told apart, or a choice without its tool."""
        names = [tool.function.name for tool in self.tools or ()]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise RequestError(f"tools[{i}].function.name", f"'{name}' is given twice")
        if self.tool_choice not in (None, "none", "auto") and not self.forced_tools:
            known = ", ".join(names) or "none"
            raise RequestError("tool_choice", f"there is no such tool to call (there are: {known})")
        if self.forced_tools and self._form() is not None:
            raise RequestError("response_format", "a tool must be called, so no other form is free")

    def _form(self) -> Structured | None:
        wanted = self.response_format
        if isinstance(wanted, JsonObjectFormat):
            return Structured(json_object=True)
        if isinstance(wanted, JsonSchemaFormat):
            return Structured(json_schema=wanted.json_schema.json_schema or {})
        return None
