"""A call written with tags: <function=f><parameter=x>1</parameter></function>."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlt_core.server.tool_calls.parts import Tool

FUNCTION = "<function="
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_ENDS = ("</function>", "</tool_call>")


class XmlBody:
    """Reads the tags, and gives each parameter on once its value is whole.

    The tool's schema tells what a value is: text as it stands (one line break at each end belongs
    to the tags), or JSON. A value that is no JSON is text all the same.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.name: str | None = None
        self._tools = {tool.name: tool for tool in tools}
        self._held, self._num_given = "", 0

    def feed(self, text: str) -> tuple[str, str | None]:
        """(arguments that are certain now, the rest behind the function or None)."""
        self._held += text
        given = ""
        if self.name is None and not self._read_name():
            return "", None
        while (parameter := self._next_parameter()) is not None:
            given += parameter
        end, tag = _first(self._held, (*_ENDS, _PARAMETER))
        if tag not in _ENDS:
            return given, None
        behind = self._held[end + len(tag) if tag == _ENDS[0] else end :]
        return given + ("}" if self._num_given else "{}"), behind

    def _read_name(self) -> bool:
        start = self._held.find(FUNCTION)
        end = self._held.find(">", start)
        if start < 0 or end < 0:
            return False
        self.name = self._held[start + len(FUNCTION) : end].strip() or None
        self._held = self._held[end + 1 :]
        return True

    def _next_parameter(self) -> str | None:
        start, tag = _first(self._held, (_PARAMETER, *_ENDS))
        name_end = self._held.find(">", start)
        if tag != _PARAMETER or name_end < 0:
            return None
        end, tag = _first(self._held[name_end:], (_END_PARAMETER, _ENDS[0]))
        if not tag:
            return None
        name = self._held[start + len(_PARAMETER) : name_end].strip()
        value = self._held[name_end + 1 : name_end + end]
        behind = name_end + end + (len(tag) if tag == _END_PARAMETER else 0)
        self._held = self._held[behind:]
        self._num_given += 1
        opening = "{" if self._num_given == 1 else ", "
        return f"{opening}{json.dumps(name, ensure_ascii=False)}: {self._json(name, value)}"

    def _json(self, name: str, value: str) -> str:
        value = value.removeprefix("\n").removesuffix("\n")
        tool = self._tools.get(self.name or "")
        if not _is_text(tool.parameters if tool else {}, name):
            try:
                return json.dumps(json.loads(value), ensure_ascii=False)
            except ValueError:
                pass
        return json.dumps(value, ensure_ascii=False)


def _is_text(schema: Mapping[str, Any], name: str) -> bool:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = found.get("type") if isinstance(found, Mapping) else None
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _first(text: str, tags: Sequence[str]) -> tuple[int, str]:
    """Where the first of some tags stands, and which; (length, "") for none."""
    found = [(place, tag) for tag in tags if (place := text.find(tag)) >= 0]
    return min(found, default=(len(text), ""))
