"""A conversation written out by a chat template, by the code of transformers itself."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlt_core.api.chat_messages import Message
from rlt_core.api.chat_templates import ChatTemplate
from rlt_core.contract.errors import RequestError

ROLES = ("system", "user", "assistant", "tool")
_PROBE = "probe7417"
_COMPARED = re.compile(r"""role\b['"\])\s]*(?:==|!=)\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a conversation is written: a template, the special tokens and options it may read."""

    template: ChatTemplate
    special_tokens: Mapping[str, str]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Any] | None = None

    def render(self, messages: list[Message]) -> str:
        """The text. RequestError when the template refuses the conversation, fails on it, or
        leaves a part of it out."""
        text = self._render(messages)
        if not text:
            raise RequestError(
                "messages", f"the chat template ({self.template.source}) writes nothing"
            )
        first = {message["role"]: index for index, message in reversed(list(enumerate(messages)))}
        for role, index in first.items():
            self._check_role(index, role)
        for index, message in enumerate(messages):
            content = message.get("content")
            if not isinstance(content, str) and content and str(content) in text:
                reason = "the chat template writes texts only; give the text instead of parts"
                raise RequestError(f"messages[{index}].content", reason)
        return text

    def _render(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        source = self.template.source
        try:
            (text,), _ = render_jinja_template(
                conversations=[messages],
                tools=None if self.tools is None else list(self.tools),
                chat_template=self.template.text,
                add_generation_prompt=self.add_generation_prompt,
                continue_final_message=self.continue_final_message,
                **{**self.special_tokens, **self.variables},
            )
        except TemplateSyntaxError as error:
            where = f"{source}, line {error.lineno}"
            raise RequestError("chat_template", f"{where}: {_first_line(error)}") from error
        except Exception as error:  # whatever the template's own expressions raise
            if type(error) is TemplateError:
                reason = f"the chat template refuses the conversation: {_first_line(error)}"
            elif (line := _line_of(error)) is None:
                reason = _first_line(error)
            else:
                kind = type(error).__name__
                reason = f"the chat template ({source}, line {line}) fails on the conversation: "
                reason += f"{kind}: {_first_line(error)}"
            raise RequestError("messages", reason) from error
        return str(text)

    def _check_role(self, index: int, role: str) -> None:
        """A template that lacks a role mostly leaves its message out, or writes the role's name
        unread."""
        template = self.template.text
        if re.search(rf"""(['"]){re.escape(role)}\1""", template):
            return
        if role in ROLES and self._writes(role):
            return
        named = dict.fromkeys(_COMPARED.findall(template))
        there = f"it names {', '.join(named)}" if named else f"usual are {', '.join(ROLES)}"
        reason = f"'{role}' is a role that the chat template does not know ({there})"
        raise RequestError(f"messages[{index}].role", reason)

    def _writes(self, role: str) -> bool:
        """Whether a message of this role reaches the text; true where the template does not take
        one on its own."""
        try:
            return _PROBE in self._render([{"role": role, "content": _PROBE}])
        except RequestError:
            return True


def check_syntax(template: ChatTemplate) -> None:
    """RequestError where its text is no template; what it writes is not looked at."""
    try:
        Rendering(template=template, special_tokens={})._render([])
    except RequestError as error:
        if error.field == "chat_template":
            raise


def _line_of(error: Exception) -> int | None:
    """The template's line that raised; None for an error from outside the template."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return lines[-1] if lines else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
