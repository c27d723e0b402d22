"""What a chat refuses: messages, templates and options that cannot work, each by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.chat import ChatFormat
from rlt_core.api.tokenizer import load_tokenizer
from rlt_core.contract.errors import RequestError
from tests.chat_kit import NAMES, chat_folder, system, template, user

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
Render = Callable[..., str]


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Renders messages with a template of tests/templates."""
    root = tmp_path_factory.mktemp("chat")
    folders = {name: chat_folder(root / name, template(name)) for name in NAMES}

    def rendered(name: str, messages: object, **options: Any) -> str:
        chat = ChatFormat(load_tokenizer(folders[name]), str(folders[name]))
        return chat.conversation(messages, **options).rendered.text

    return rendered


BAD = [
    ([], "messages: the conversation is empty"),
    ("Hi", "messages: a conversation is a list of messages, not str"),
    ({"role": "user"}, "messages: a conversation is a list of messages, not dict"),
    (None, "messages: a conversation is a list of messages, not NoneType"),
    (["Hi"], "messages[0]: a message is a table"),
    ([{"content": "Hi"}], "messages[0].role: is missing"),
    ([{"role": 7, "content": "Hi"}], "messages[0].role: 7 is no role's name"),
    ([{"role": "", "content": "Hi"}], "messages[0].role: '' is no role's name"),
    ([{7: 8, "role": "user", "content": "Hi"}], "messages[0]: the key 7 is no text"),
    ([{"role": "user"}], "messages[0].content: is missing; what does the user say?"),
    ([user("a"), {"role": "assistant", "content": None}], "messages[1].content: is missing"),
    ([{"role": "user", "content": 7}], "messages[0].content: 7 is neither a text nor"),
    ([{"role": "user", "content": []}], "messages[0].content: [] is neither a text nor"),
    ([{"role": "user", "content": [7]}], "messages[0].content[0]: 7 is no part"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]: a part of type"),
    ([{"role": "user", "content": b"Hi"}], "messages[0].content: b'Hi' is neither"),
    ([user("a"), system("b")], "messages[1]: the system message must be the first"),
    ([system("a"), system("b"), user("c")], "messages[1]: the system message must be the first"),
    ([{"role": "robot", "content": "Hi"}], "'robot' is a role that the chat template does not"),
    ([user("\ud800")], "messages: is not valid Unicode"),
]


@pytest.mark.parametrize(("messages", "says"), BAD)
def test_a_wrong_conversation_is_named(render: Render, messages: object, says: str) -> None:
    """A role that the template drops cost the message in silence; a missing content was written
    as "None"; a wrong type ended in a traceback of the template engine."""
    with pytest.raises(RequestError) as caught:
        render("chatml", messages)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("name", "messages", "says"),
    [
        ("tools", [user("a"), {"role": "robot", "content": "b"}], "Unexpected role: robot"),
        ("strict", [user("a"), {"role": "robot", "content": "b"}], "(it names user, assistant)"),
        ("strict", [system("a"), user("b")], "'system' is a role that the chat template does"),
        ("headers", [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "texts only"),
        ("chatml", [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "TypeError"),
    ],
)
def test_what_the_template_cannot_write(
    render: Render, name: str, messages: object, says: str
) -> None:
    """A template's own refusal was hidden, its Python error was a traceback, a message that it
    leaves out was lost, and parts of a content were written as Python."""
    with pytest.raises(RequestError) as caught:
        render(name, messages)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ 1 }}\n{% if %}", "chat_template: chat_template, line 2: "),
        ("{% nonsense %}", "line 1: Encountered unknown tag 'nonsense'"),
        ("\n\n{{ messages[0].a.b }}", "(chat_template, line 3) fails on the conversation: Undef"),
        ("{{ raise_exception('No.\\nNever.') }}", "refuses the conversation: No."),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% if false %}x{% endif %}", "the chat template (chat_template) writes nothing"),
        ("chatmll", "chat_template: 'chatmll' is no file, no text of a template and no name"),
        (7, "chat_template: int is no path, name or text"),
        (Path("no/such.jinja"), "chat_template: no/such.jinja cannot be read (No such file"),
    ],
)
def test_a_template_that_does_not_work(render: Render, text: object, says: str) -> None:
    """A mistake in a template was a traceback without the template's line."""
    with pytest.raises(RequestError) as caught:
        render("chatml", [user("Hi")], chat_template=text)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"add_generation_prompt": 1}, "add_generation_prompt: 1 is not true or false"),
        ({"continue_final_message": True}, "Fix: add_generation_prompt=False"),
        ({"chat_template_kwargs": ["a"]}, "chat_template_kwargs: a table of name to value"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs: 'a b' is no variable's"),
        ({"chat_template_kwargs": {"messages": 1}}, "'messages' is an argument of its own"),
        ({"tools": "weather"}, "tools: a list of tables or functions, not str"),
        ({"tools": ["weather"]}, "tools[0]: str is no table and no function"),
        ({"tools": [WEATHER]}, "has no place for tools"),
    ],
)
def test_options_that_cannot_work(render: Render, options: dict[str, Any], says: str) -> None:
    """An option that the template does not read was dropped in silence."""
    with pytest.raises(RequestError) as caught:
        render("chatml", [user("Hi")], **options)
    assert says in str(caught.value)
