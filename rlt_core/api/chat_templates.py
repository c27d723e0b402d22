"""The chat templates that a checkpoint brings along, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlt_core.api.special_tokens import CONFIG
from rlt_core.api.tokenizer import read_json
from rlt_core.contract.errors import CheckpointError, RequestError

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
DEFAULT, WITH_TOOLS = "default", "tool_use"
_GIVE_ONE = 'Fix: --chat-template FILE (rlt run, rlt serve), or LLM.chat(..., chat_template="FILE")'


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template's text, and where it was read (for messages)."""

    text: str
    source: str


def read_templates(folder: Path) -> dict[str, ChatTemplate]:
    """Name -> template as transformers finds them: files come first, and where there is one
    tokenizer_config.json is not asked. Empty when there is none; CheckpointError when a file
    cannot be read."""
    files = {DEFAULT: folder / FILE} if (folder / FILE).is_file() else {}
    files.update({file.stem: file for file in sorted((folder / FOLDER).glob("*.jinja"))})
    if files:
        return {name: _from_checkpoint(file) for name, file in files.items()}
    config = folder / CONFIG
    if not config.is_file():
        return {}
    return named_templates(read_json(config).get("chat_template"), str(config))


def named_templates(value: object, source: str) -> dict[str, ChatTemplate]:
    """The `chat_template` of a tokenizer: text, a table by name, or a list of {name, template}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: ChatTemplate(text=value, source=f"{source}: chat_template")}
    if isinstance(value, (list, tuple)) and all(isinstance(e, Mapping) for e in value):
        value = {entry.get("name"): entry.get("template") for entry in value}
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        reason = "field 'chat_template' is neither a text nor a list of tables of name and template"
        raise CheckpointError(source, reason, _GIVE_ONE)
    return {
        name: ChatTemplate(text=text, source=f"{source}: chat_template '{name}'")
        for name, text in value.items()
    }


def choose_template(
    named: Mapping[str, ChatTemplate], given: object, *, has_tools: bool, owner: str
) -> ChatTemplate:
    """The template of one call: a file, a name, a template's text, one that was chosen before, or
    the checkpoint's own (with tools its `tool_use` where it has one). CheckpointError when it has
    none."""
    if isinstance(given, ChatTemplate):
        return given
    if isinstance(given, os.PathLike):
        return _from_user(Path(given))
    if isinstance(given, str):
        return named[given] if given in named else _from_text(given, named)
    if given is not None:
        raise RequestError("chat_template", f"{type(given).__name__} is no path, name or text")
    if has_tools and WITH_TOOLS in named:
        return named[WITH_TOOLS]
    if DEFAULT in named:
        return named[DEFAULT]
    if named:
        reason = f"no chat template is named '{DEFAULT}'; there are {', '.join(sorted(named))}"
        fix = 'Fix: --chat-template NAME (rlt run, rlt serve), or chat_template="NAME"'
        raise CheckpointError(owner, reason, fix)
    reason = f"it has no chat template (no {FILE}, and none in {CONFIG})"
    raise CheckpointError(owner, reason, _GIVE_ONE)


def _from_text(text: str, named: Mapping[str, ChatTemplate]) -> ChatTemplate:
    # A misspelt name would be a template that always renders itself.
    if "{{" in text or "{%" in text:
        return ChatTemplate(text=text, source="chat_template")
    if os.path.isfile(text):
        return _from_user(Path(text))
    known = ", ".join(sorted(named)) or "none"
    reason = f"{text!r} is no file, no text of a template and no name of one (there are: {known})"
    raise RequestError("chat_template", reason)


def _from_user(file: Path) -> ChatTemplate:
    try:
        return ChatTemplate(text=_read(file), source=str(file))
    except (OSError, UnicodeError) as error:
        raise RequestError("chat_template", f"{file} cannot be read ({_reason(error)})") from error


def _from_checkpoint(file: Path) -> ChatTemplate:
    try:
        return ChatTemplate(text=_read(file), source=str(file))
    except (OSError, UnicodeError) as error:
        reason = f"the chat template cannot be read ({_reason(error)})"
        raise CheckpointError(str(file), reason, _GIVE_ONE) from error


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _reason(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
