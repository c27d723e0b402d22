"""Factories are "package.module:Name" strings; here they become objects, once chosen."""

from __future__ import annotations

import importlib
import re
from typing import Any

from rlt_core.contract.errors import PluginError
from rlt_core.plugins.plan import Source

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_dotted(text: object) -> bool:
    """Whether `text` has the form "package.module:Name"."""
    return isinstance(text, str) and _DOTTED.fullmatch(text) is not None


def load_object(dotted: str, source: Source | None = None) -> Any:
    """The object that "package.module:Name" names.

    `source` is the plugin that declared it, for the message. Raises PluginError when the module
    cannot be imported or has no such name; the original error is its cause.
    """
    plugin = str(source) if source else dotted.partition(".")[0]
    if not is_dotted(dotted):
        raise PluginError(plugin, f"'{dotted}' is not of the form package.module:Name")
    module_name, _, name = dotted.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PluginError(plugin, f"'{dotted}' cannot be loaded: {error}") from error
    return found
