"""Which format of tool calls a checkpoint writes, by name or from its chat template."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from rlt_core.contract.errors import OptionError, UnknownNameError
from rlt_core.server.tool_calls.parts import ToolFormat
from rlt_core.server.tool_calls.tagged import OPEN, TaggedFormat

FORMATS: dict[str, type[ToolFormat]] = {"tool_call": TaggedFormat}


def named_format(name: str) -> ToolFormat:
    """A format of FORMATS, or one of your own as "package.module:Class"; UnknownNameError or
    OptionError where there is none."""
    if name in FORMATS:
        return FORMATS[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownNameError("tool parser", name, FORMATS, "Fix: --tool-parser NAME")
    try:
        return cast(ToolFormat, getattr(import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError) as error:
        raise OptionError("--tool-parser", name, f"it cannot be made ({error})") from error


def format_of_template(template: str) -> ToolFormat | None:
    """The format that a chat template writes calls of earlier turns in; None for an unknown one."""
    return TaggedFormat() if OPEN in template else None
