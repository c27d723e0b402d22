"""Tools in a chat request, and which of them may or must be called."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlt_core.server.openai.schema import FunctionName, JsonTable, Part, Text
from rlt_core.server.tool_calls.parts import Tool


class Function(Part):
    """A function: its name, what it does, the JSON schema of its arguments."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonTable | None = None
    strict: bool | None = None


class ToolParam(Part):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """As a parser takes it."""
        return Tool(name=self.function.name, parameters=self.function.parameters or {})


class FunctionChoice(Part):
    """The name of a function."""

    name: FunctionName


class NamedTool(Part):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionChoice


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Part):
    """A function that was called; its arguments are a JSON object as text, or empty."""

    name: FunctionName
    arguments: Text


class ToolCallParam(Part):
    """A call that an assistant made in an earlier turn."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


Tools = Annotated[list[ToolParam], Field(max_length=128)]
