"""Messages of a chat request, and the same as a chat template reads them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.schema import Part, Refused, Text
from rlt_core.server.openai.tools import ToolCallParam


class TextPart(Part):
    """A piece of text; pictures, sounds and files are not read."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(min_length=1)]


class SystemMessage(Part):
    """What the model is told beforehand; only the first message may be one."""

    role: Literal["system", "developer"]
    content: Content
    name: Text | None = None


class UserMessage(Part):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: Text | None = None


class AssistantMessage(Part):
    """What the model said in an earlier turn: text, calls of tools, or both."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Text | None = None
    tool_calls: Annotated[list[ToolCallParam], Field(min_length=1)] | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    refusal: Refused
    audio: Refused
    function_call: Refused
    annotations: Refused


class ToolMessage(Part):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Text
    name: Text | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """The messages as chat templates know them: text alone, arguments of calls as tables, no
    developers. RequestError naming the message."""
    return [_template_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _template_message(where: str, message: Message) -> dict[str, Any]:
    found = message.model_dump(exclude_none=True)
    if message.role == "developer":
        found["role"] = "system"
    if isinstance(message.content, list):
        found["content"] = "\n".join(part.text for part in message.content)
    if isinstance(message, AssistantMessage):
        _complete(where, message, found)
    return found


def _complete(where: str, message: AssistantMessage, found: dict[str, Any]) -> None:
    if message.reasoning is not None:
        found.setdefault("reasoning_content", found.pop("reasoning"))
    for i, call in enumerate(found.get("tool_calls", ())):
        place = f"{where}.tool_calls[{i}].function.arguments"
        call["function"]["arguments"] = _arguments(place, call["function"]["arguments"])
    if message.tool_calls:
        # Templates test and join it as text.
        found.setdefault("content", "")
    elif message.content is None and not found.get("reasoning_content"):
        raise RequestError(f"{where}.content", "is missing; what does the assistant say?")


def _arguments(where: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(where, f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise RequestError(where, "is no JSON object")
    return found
