"""A chat request as a prompt: its conversation, its tools, and the form that they force."""

from __future__ import annotations

from typing import Any, cast

from rlt_core.api.chat import ChatFormat, Conversation
from rlt_core.api.chat_templates import ChatTemplate
from rlt_core.api.structured import Structured
from rlt_core.api.tokenizer import ChatTokenizer, Tokenizer
from rlt_core.api.turn import special_id
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.call_grammar import forced_call, strict_calls
from rlt_core.server.openai.chat_request import ChatRequest
from rlt_core.server.openai.messages import template_messages
from rlt_core.server.tool_calls.formats import format_of_template
from rlt_core.server.tool_calls.parts import ToolFormat


class ChatPrompt:
    """What a chat request says, made ready for an engine; RequestError for what cannot work.

    given, given_template: the format of tool calls and the template that the server was started
    with; None for the template's own format, and for the checkpoint's own template.
    """

    def __init__(
        self,
        body: ChatRequest,
        chat: ChatFormat,
        given: ToolFormat | None,
        given_template: ChatTemplate | None = None,
    ) -> None:
        body.check_tools()
        tools = [tool.model_dump(exclude_none=True) for tool in body.shown_tools]
        template = chat.template(given_template, has_tools=bool(tools)).text
        self.format = _format(template, given) if tools else None
        goes_on, begins = bool(body.continue_final_message), body.add_generation_prompt
        self.conversation: Conversation = chat.conversation(
            template_messages(body.messages),
            add_generation_prompt=not goes_on if begins is None else begins,
            continue_final_message=goes_on,
            chat_template=given_template,
            chat_template_kwargs=_variables(body, template),
            tools=tools or None,
            shown=() if self.format is None else self.format.tags,
        )

    def form(self, body: ChatRequest, tokenizer: Tokenizer | None) -> Structured | None:
        """The form that the tools give the answer; None for a free one. RequestError where
        the text must be of another form."""
        if self.format is None:
            return None
        if body.forced_tools:
            return forced_call(body.forced_tools, self.format)
        if body.has_form:
            reason = "an answer of this form could call no tool"
            raise RequestError(body.form_field, f'{reason}\nFix: tool_choice="none", or no form')
        if not any(tool.function.strict for tool in body.shown_tools):
            return None
        tag_id = None
        if tokenizer is not None:
            tag_id = special_id(cast(ChatTokenizer, tokenizer), self.format.tags[0])
        return strict_calls(body.shown_tools, self.format, tag_id)


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
