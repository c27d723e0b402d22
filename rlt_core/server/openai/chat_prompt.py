"""A chat request as a prompt: its conversation, its tools, and the form that they force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlt_core.api.chat import ChatFormat, Conversation
from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.chat_request import ChatRequest
from rlt_core.server.openai.messages import template_messages
from rlt_core.server.openai.tools import ToolParam
from rlt_core.server.tool_calls.formats import format_of_template
from rlt_core.server.tool_calls.parts import ToolFormat


class ChatPrompt:
    """What a chat request says, made ready for an engine; RequestError for what cannot work.

    given: the format of tool calls that the server was started with; None for the template's own.
    """

    def __init__(self, body: ChatRequest, chat: ChatFormat, given: ToolFormat | None) -> None:
        body.check_tools()
        tools = [tool.model_dump(exclude_none=True) for tool in body.shown_tools]
        template = chat.template(has_tools=bool(tools)).text
        self.format = _format(template, given) if tools else None
        goes_on, begins = bool(body.continue_final_message), body.add_generation_prompt
        self.conversation: Conversation = chat.conversation(
            template_messages(body.messages),
            add_generation_prompt=not goes_on if begins is None else begins,
            continue_final_message=goes_on,
            chat_template_kwargs=_variables(body, template),
            tools=tools or None,
            shown=() if self.format is None else self.format.tags,
        )

    def forced(self, tools: Sequence[ToolParam]) -> Structured | None:
        """The form of an answer that must call one of these tools; None for a free answer."""
        if not tools or self.format is None:
            return None
        before, behind = self.format.frame()
        return Structured(json_schema=call_schema(tools), prefix=before, suffix=behind)


def call_schema(tools: Sequence[ToolParam]) -> dict[str, Any]:
    """The JSON schema of a call of one of the tools."""
    if len(tools) == 1:
        return _call_schema(tools[0], "#")
    return {"anyOf": [_call_schema(tool, f"#/anyOf/{i}") for i, tool in enumerate(tools)]}


def _call_schema(tool: ToolParam, place: str) -> dict[str, Any]:
    parameters = tool.function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose own root now lies at `place` of another: its references follow."""
    if isinstance(schema, Mapping):
        moved = {key: _moved(value, place) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = place + reference[1:]
        return moved
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    return schema


def _format(template: str, given: ToolFormat | None) -> ToolFormat:
    found = given or format_of_template(template)
    if found is None:
        reason = "the chat template writes calls in a form that no parser here knows"
        raise RequestError("tools", f"{reason}\nFix: rlt serve --tool-parser NAME")
    return found


def _variables(body: ChatRequest, template: str) -> dict[str, Any]:
    """What the template may read, reasoning_effort among it; the request's own value counts."""
    return {**_thinking(body.reasoning_effort, template), **(body.chat_template_kwargs or {})}


def _thinking(effort: str | None, template: str) -> dict[str, Any]:
    if effort is None:
        return {}
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if effort == "none" and "enable_thinking" in template:
        return {"enable_thinking": False}
    reason = "the chat template does not read it"
    if "enable_thinking" in template:
        reason = "the chat template knows only 'none'; leave it out, or use"
        reason += ' chat_template_kwargs={"enable_thinking": true}'
    raise RequestError("reasoning_effort", reason)
