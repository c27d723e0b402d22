"""The forms of answers that may or must call tools: JSON schemas and a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlt_core.api.grammar_text import WHITE_SPACE
from rlt_core.api.structured import Structured
from rlt_core.server.openai.tools import ToolParam
from rlt_core.server.tool_calls.parts import ToolFormat


def forced_call(tools: Sequence[ToolParam], form: ToolFormat) -> Structured:
    """An answer that is one call of one of the tools."""
    before, behind = form.frame()
    return Structured(json_schema=call_schema(tools), prefix=before, suffix=behind)


def strict_calls(tools: Sequence[ToolParam], form: ToolFormat, tag_id: int | None) -> Structured:
    """An answer of any text with any number of calls in it, each of one of the tools and with
    arguments of its schema where it is strict, else with any object.

    tag_id: the special token that is the format's first tag, where it is one.
    """
    before, behind = form.frame()
    tag = form.tags[0]
    begins = f"<[{tag_id}]>" if tag_id is not None else json.dumps(tag)
    lazy = "" if tag_id is not None else "[lazy]"
    shown = [tool if tool.function.strict else _any_object(tool) for tool in tools]
    schema = {**call_schema(shown), "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    rest = f"{_literal(before.removeprefix(tag))} %json {json.dumps(schema)} {_literal(behind)}"
    # The lazy rule ends at the first tag, so that nothing else can stand behind one.
    return Structured(
        grammar="start: call* text\ntext: TEXT\nTEXT: /(.|\\n)*/\n"
        f"begun{lazy}: TEXT {begins}\ncall: begun {rest}\n"
    )


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


def _any_object(tool: ToolParam) -> ToolParam:
    function = tool.function.model_copy(update={"parameters": None})
    return tool.model_copy(update={"function": function})


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
