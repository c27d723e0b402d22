"""Conversations as prompts: which template writes them, and how the text becomes tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from rlt_core.api.chat_messages import check_messages
from rlt_core.api.chat_renderer import Rendering, check_syntax
from rlt_core.api.chat_templates import (
    ChatTemplate,
    choose_template,
    named_templates,
    read_templates,
)
from rlt_core.api.reasoning import CLOSE, OPEN
from rlt_core.api.special_tokens import read_special_tokens, tokens_for
from rlt_core.api.tokenizer import ChatTokenizer, LibraryTokenizer, Tokenizer, why_unreadable
from rlt_core.api.turn import Turn, read_turn
from rlt_core.contract.errors import CheckpointError, RequestError

# What `Rendering` gives the template itself.
_TAKEN = ("messages", "conversations", "tools", "chat_template", "add_generation_prompt")
_RESERVED = frozenset((*_TAKEN, "continue_final_message", "return_assistant_tokens_mask"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A conversation as the model reads it: its text, and the token ids of exactly this text."""

    text: str
    tokens: list[int]
    turn: Turn


class Conversation:
    """One conversation, a prompt for `LLM.generate` and `LLM.stream`; read once."""

    def __init__(
        self, messages: object, rendering: Rendering, chat: ChatFormat, shown: Sequence[str] = ()
    ) -> None:
        self._messages, self._rendering, self._chat = messages, rendering, chat
        self._shown = shown

    @cached_property
    def rendered(self) -> RenderedChat:
        """RequestError when this conversation is wrong."""
        messages = check_messages(self._messages)
        text = self._rendering.render(messages)
        inside = self._rendering.add_generation_prompt and text.rstrip().endswith(OPEN)
        if self._rendering.continue_final_message:
            inside = _is_open(messages[-1].get("content"))
        return RenderedChat(
            text=text,
            tokens=self._chat.encode(text),
            turn=self._chat.turn(inside=inside, shown=self._shown),
        )


class ChatFormat:
    """How a checkpoint writes conversations: by the templates of the tokenizer in use, else by
    those of the model's folder. Files are read when a chat first needs them."""

    def __init__(self, tokenizer: Tokenizer | None, model_path: str | None) -> None:
        self._tokenizer = tokenizer
        self._library = tokenizer if isinstance(tokenizer, LibraryTokenizer) else None
        own = None if self._library is None else self._library.folder
        model = None if model_path is None else Path(model_path)
        self._folder = own or model
        self._folders = list(dict.fromkeys(path for path in (own, model) if path is not None))

    @property
    def available(self) -> bool:
        """Whether there is a tokenizer and a template, so that `conversation` can be written."""
        try:
            self._check_tokenizer()
            self.template()
        except (CheckpointError, RequestError):
            return False
        return True

    def conversation(
        self,
        messages: object,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: object = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: object = None,
        shown: Sequence[str] = (),
    ) -> Conversation:
        """A conversation with the options of `LLM.chat`. What is wrong with the options is raised
        at once (RequestError; CheckpointError where no template is found), what is wrong with the
        messages when it is read. shown: texts of special tokens that are text of the answer all
        the same, as the tags of tool calls."""
        _check_flags(add_generation_prompt, continue_final_message)
        variables = _check_variables(chat_template_kwargs)
        self._check_tokenizer()
        template = self.template(chat_template, has_tools=tools is not None)
        rendering = Rendering(
            template=template,
            special_tokens=self._special_tokens(template.text),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            tools=_check_tools(tools, template),
        )
        return Conversation(messages, rendering, self, shown)

    def template(self, chat_template: object = None, *, has_tools: bool = False) -> ChatTemplate:
        """The template that a conversation with this option is written by; its errors."""
        owner = str(self._folder or "this tokenizer")
        return choose_template(self._named, chat_template, has_tools=has_tools, owner=owner)

    def checked_template(self, chat_template: object) -> ChatTemplate:
        """`template` of this option, for conversations to come; RequestError where its text is no
        template."""
        template = self.template(chat_template)
        check_syntax(template)
        return template

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered text."""
        try:
            return self._chat_tokenizer.encode_rendered(text)
        except (UnicodeError, TypeError, ValueError) as error:
            raise RequestError("messages", why_unreadable(text, error)) from error

    def turn(self, *, inside: bool, shown: Sequence[str] = ()) -> Turn:
        """The turn that the model is to write."""
        return read_turn(self._chat_tokenizer, inside=inside, end=self._end, shown=shown)

    @property
    def _chat_tokenizer(self) -> ChatTokenizer:
        return cast(ChatTokenizer, self._tokenizer)

    @cached_property
    def _named(self) -> dict[str, ChatTemplate]:
        own = getattr(self._object, "chat_template", None)
        found = named_templates(own, type(self._object).__name__)
        for folder in self._folders:
            found = found or read_templates(folder)
        return found

    @property
    def _object(self) -> object:
        """The tokenizer as the user gave it; None for one that was read from a folder."""
        if self._library is None:
            return self._tokenizer
        return self._library.given if self._library.folder is None else None

    @cached_property
    def _end(self) -> str | None:
        known = getattr(self._object, "special_tokens_map", None)
        if known is None and self._folder is not None:
            known = read_special_tokens(self._folder)
        return (known or {}).get("eos_token")

    def _special_tokens(self, template: str) -> Mapping[str, str]:
        known = getattr(self._object, "special_tokens_map", None)
        if isinstance(known, Mapping):
            return {name: text for name, text in known.items() if isinstance(text, str)}
        return {} if self._folder is None else tokens_for(template, self._folder)

    def _check_tokenizer(self) -> None:
        owner = str(self._folder or "LLM")
        if self._tokenizer is None:
            fix = "Fix: --tokenizer FOLDER (tokenizer=), or token ids without a chat"
            raise CheckpointError(owner, "it has no tokenizer, so a chat cannot be read", fix)
        if not callable(getattr(self._tokenizer, "encode_rendered", None)):
            kind = type(self._tokenizer).__name__
            raise CheckpointError(owner, f"tokenizer {kind} has no encode_rendered for a chat")


def _is_open(content: object) -> bool:
    """Whether a text stops inside a think block."""
    text = content if isinstance(content, str) else ""
    return text.rfind(OPEN) > text.rfind(CLOSE)


def _check_flags(add_generation_prompt: object, continue_final_message: object) -> None:
    flags = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RequestError(name, f"{value!r} is not true or false")
    if add_generation_prompt and continue_final_message:
        reason = "the last message either goes on or is followed by a new one"
        raise RequestError("continue_final_message", f"{reason}\nFix: add_generation_prompt=False")


def _check_variables(given: object) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise RequestError(
            "chat_template_kwargs", f"a table of name to value is needed, not {kind}"
        )
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise RequestError("chat_template_kwargs", f"{name!r} is no variable's name")
        if name in _RESERVED:
            raise RequestError("chat_template_kwargs", f"'{name}' is an argument of its own")
    return given


def _check_tools(tools: object, template: ChatTemplate) -> list[Any] | None:
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)):
        raise RequestError("tools", f"a list of tables or functions, not {type(tools).__name__}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping) and not callable(tool):
            raise RequestError(f"tools[{i}]", f"{type(tool).__name__} is no table and no function")
    if tools and not re.search(r"\btools\b", template.text):
        raise RequestError("tools", f"the chat template ({template.source}) has no place for tools")
    return [dict(tool) if isinstance(tool, Mapping) else tool for tool in tools]
