"""The messages of a conversation, checked before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlt_core.contract.errors import RequestError

Message = dict[str, Any]
SYSTEM = "system"
# What may stand in for the text of a message.
_INSTEAD = ("tool_calls", "reasoning_content", "reasoning", "thinking")


def as_conversations(messages: object) -> tuple[list[object], bool]:
    """(conversations, whether it was a single one); TypeError for what is no list."""
    if not isinstance(messages, (list, tuple)):
        kind = type(messages).__name__
        raise TypeError(f"messages must be a list of messages or of conversations, not {kind}")
    if any(isinstance(item, (list, tuple)) for item in messages):
        return list(messages), False
    return [messages], True


def check_messages(messages: object) -> list[Message]:
    """A conversation as new tables without the keys that are None, which templates would write
    out as "None". RequestError naming the message."""
    if not isinstance(messages, (list, tuple)):
        kind = type(messages).__name__
        raise RequestError("messages", f"a conversation is a list of messages, not {kind}")
    if not messages:
        raise RequestError("messages", "the conversation is empty; at least one message is needed")
    checked = [_check_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    for i, message in enumerate(checked):
        if i and message["role"] == SYSTEM:
            raise RequestError(f"messages[{i}]", "the system message must be the first, and alone")
    return checked


def _check_message(name: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        reason = "a message is a table like {'role': 'user', 'content': 'text'}, not "
        raise RequestError(name, reason + type(message).__name__)
    for key in message:
        if not isinstance(key, str):
            raise RequestError(name, f"the key {key!r} is no text")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        given = "is missing" if role is None else f"{role!r} is no role's name"
        raise RequestError(f"{name}.role", given)
    content = message.get("content")
    if content is None and not any(message.get(key) for key in _INSTEAD):
        raise RequestError(f"{name}.content", f"is missing; what does the {role} say?")
    if content is not None:
        _check_content(f"{name}.content", content, role)
    return {key: value for key, value in message.items() if value is not None}


def _check_content(name: str, content: object, role: str) -> None:
    if isinstance(content, str) or (role == "tool" and isinstance(content, Mapping)):
        return
    if not isinstance(content, (list, tuple)) or not content:
        raise RequestError(name, f"{_short(content)} is neither a text nor a list of parts")
    for i, part in enumerate(content):
        if isinstance(part, Mapping) and part.get("type") == "text":
            if not isinstance(part.get("text"), str):
                raise RequestError(f"{name}[{i}]", "a part of type text needs its 'text'")
        elif not isinstance(part, (str, Mapping)):
            raise RequestError(f"{name}[{i}]", f"{_short(part)} is no part of a content")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
