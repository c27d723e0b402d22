"""A conversation is written exactly as transformers writes it, text and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlt_core.api.chat import ChatFormat
from rlt_core.api.tokenizer import load_tokenizer
from rlt_core.contract.errors import CheckpointError, RequestError
from tests.chat_kit import (
    BOS,
    EOS,
    NAMES,
    assistant,
    chat_folder,
    template,
    token_id,
    user,
)
from tests.chat_tables import CHATS, OPTIONS

Render = Callable[..., str]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("chat")
    return {name: chat_folder(root / name, template(name)) for name in NAMES}


def form(folder: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(folder), str(folder))


@pytest.fixture
def render(folders: dict[str, Path]) -> Render:
    """Renders messages with a template of tests/templates."""

    def rendered(name: str, messages: object, **options: Any) -> str:
        return form(folders[name]).conversation(messages, **options).rendered.text

    return rendered


def theirs(loaded: Any, messages: Any, options: dict[str, Any], **how: Any) -> Any:
    """What transformers makes of it; its error where it refuses."""
    given = {"add_generation_prompt": True, **options}
    given.update(given.pop("chat_template_kwargs", {}))
    try:
        return loaded.apply_chat_template(messages, **given, **how)
    except Exception as error:
        return error


def ours(chat: ChatFormat, messages: Any, options: dict[str, Any]) -> Any:
    try:
        return chat.conversation(messages, **options).rendered
    except RequestError as error:
        return error


@pytest.mark.timeout(240)  # the first one imports the tokenizers of transformers
@pytest.mark.parametrize("name", NAMES)
def test_text_and_tokens_equal_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    """CASES A22, A37, A46: a rebuilt template differed by a blank line, or the start token came
    twice. Every template, conversation and option; a refusal must be one on both sides."""
    from transformers import AutoTokenizer

    loaded, chat = AutoTokenizer.from_pretrained(folders[name]), form(folders[name])
    equal = refused = 0
    for label, messages in CHATS.items():
        for kind, options in OPTIONS.items():
            found, expected = (
                ours(chat, messages, options),
                theirs(loaded, messages, options, tokenize=False),
            )
            if isinstance(found, RequestError):
                # What transformers drops in silence is an error here: tools, roles.
                dropped = found.field == "tools" or found.field.endswith(".role")
                assert dropped or isinstance(expected, Exception), (label, kind, found)
                refused += 1
                continue
            tokens = theirs(loaded, messages, options, tokenize=True, return_dict=True)
            assert found.text == expected, (label, kind)
            assert found.tokens == tokens["input_ids"], (label, kind)
            equal += 1
    print(f"{name}: {equal} equal, {refused} refused")
    assert equal >= 50


STOCK = "<|im_start|>system\nA stock line of ours.<|im_end|>\n"
ASK, ANSWER = "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>assistant\n"
TOOLS = "Tools:\n<tools>\n" + (
    '{"type": "function", "function": {"name": "weather", "parameters": '
    '{"city": {"type": "string", "é": "<\'\\"&>"}}}}\n</tools><|im_end|>\n'
)
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("name", "messages", "options", "expected"),
    [
        ("chatml", "user", "plain", STOCK + ASK + ANSWER),
        ("chatml", "user", "think", STOCK + ASK + ANSWER),
        ("chatml", "user", "no prompt", STOCK + ASK),
        ("chatml", "system", "plain", f"<|im_start|>system\nBe brief.<|im_end|>\n{ASK}{ANSWER}"),
        ("chatml", "empty system", "plain", f"<|im_start|>system\n<|im_end|>\n{ASK}{ANSWER}"),
        ("chatml_thinking", "user", "plain", STOCK + ASK + ANSWER),
        ("chatml_thinking", "user", "think", f"{STOCK}{ASK}{ANSWER}<think>\n"),
        ("chatml_thinking", "user", "no think", STOCK + ASK + ANSWER),
        (
            "tools",
            "user",
            "plain",
            f"<|im_start|>system\n你是一个助手。<|im_end|>\n{ASK}{ANSWER}<think>\n",
        ),
        (
            "tools",
            "user",
            "no think",
            f"<|im_start|>system\n你是一个助手。<|im_end|>\n{ASK}{ANSWER}<think>\n\n</think>\n\n",
        ),
        (
            "tools",
            "user",
            "tools",
            f"<|im_start|>system\n你精通各种工具。{TOOLS}{ASK}{ANSWER}<think>\n",
        ),
        (
            "tools",
            "system",
            "tools",
            f"<|im_start|>system\nBe brief.\n\n{TOOLS}{ASK}{ANSWER}<think>\n",
        ),
        (
            "tools",
            "tool results last",
            "tools",
            f"<|im_start|>system\n你精通各种工具。{TOOLS}"
            f"<|im_start|>user\nRain?<|im_end|>\n{ANSWER}<think>\nask\n</think>\n\n"
            f"{CALLED}\n{CALLED}<|im_end|>\n<|im_start|>user\n<tool_response>\ndry\n"
            f"</tool_response>\n<tool_response>\nwet\n</tool_response><|im_end|>\n{ANSWER}<think>\n",
        ),
        (
            "tools",
            "reasoned",
            "strip",
            "<|im_start|>system\n你是一个助手。<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"
            f"{ANSWER}2<|im_end|>\n<|im_start|>user\n3<|im_end|>\n"
            f"{ANSWER}<think>\n\n</think>\n\n4<|im_end|>\n{ANSWER}<think>\n",
        ),
        (
            "headers",
            "history",
            "plain",
            "<bos><|begin_header|>user<|end_header|>\n\nHi<|end_turn|>"
            "<|begin_header|>Raven<|end_header|>\n\nHello<|end_turn|>"
            "<|begin_header|>user<|end_header|>\n\nand?<|end_turn|>"
            "<|begin_header|>Raven<|end_header|>\n\n",
        ),
        (
            "headers",
            "user",
            "no prompt",
            "<bos><|begin_header|>user<|end_header|>\n\nHi<|end_turn|><|end_text|>",
        ),
    ],
)
def test_rendered_text(
    render: Render, name: str, messages: str, options: str, expected: str
) -> None:
    """CASES A22, A37, A38, A46: one character more or less than the model was trained on."""
    assert render(name, CHATS[messages], **OPTIONS[options]) == expected


def test_the_start_token_comes_once_or_not_at_all(folders: dict[str, Path]) -> None:
    """CASES A46: the tokenizer put its start token before the one in the template, or before a
    template that writes none; the prompt ended in an end-of-text token."""
    tokenizer = load_tokenizer(folders["headers"])
    assert tokenizer is not None
    assert tokenizer.encode("Hi")[0] == BOS
    tokens = form(folders["headers"]).conversation([user("Hi")]).rendered.tokens
    assert (tokens[0], tokens.count(BOS)) == (BOS, 1)
    assert tokens[-1] not in (EOS, token_id(folders["headers"], "<|end_turn|>"))
    tokens = form(folders["chatml"]).conversation([user("Hi")]).rendered.tokens
    assert BOS not in tokens
    assert tokens[0] == token_id(folders["chatml"], "<|im_start|>")


@pytest.mark.parametrize(
    ("name", "options", "inside"),
    [
        ("chatml_thinking", "think", True),
        ("chatml_thinking", "plain", False),
        ("tools", "plain", True),
        ("tools", "no think", False),
        ("tools", "no prompt", False),
    ],
)
def test_an_open_think_block_is_seen_in_the_prompt(
    folders: dict[str, Path], name: str, options: str, inside: bool
) -> None:
    """CASES A38: the answer starts inside the block, and its first half was taken as the text."""
    conversation = form(folders[name]).conversation([user("<think>")], **OPTIONS[options])
    assert conversation.rendered.turn.inside is inside


def test_going_on_in_a_think_block(folders: dict[str, Path]) -> None:
    """A message that goes on after an open tag gave its reasoning as the answer."""
    for text, inside in (("<think>\nso", True), ("<think>a</think>b", False), ("b", False)):
        chat = form(folders["chatml"]).conversation(
            [user("Hi"), assistant(text)], **OPTIONS["go on"]
        )
        assert chat.rendered.text.endswith(f"<|im_start|>assistant\n{text}")
        assert chat.rendered.turn.inside is inside


def test_a_function_is_a_tool(render: Render) -> None:
    """A Python function was refused, or written as <function>."""

    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: Where.
        """
        return city

    text = render("tools", [user("Hi")], tools=[weather])
    assert '"name": "weather", "description": "Tells the weather."' in text


def test_fields_without_a_value_are_left_out(render: Render) -> None:
    """A field that is None was written as the word None."""
    messages = [{"role": "user", "content": "Hi", "name": None}]
    text = "{{ messages[0].content }}{{ messages[0].name }}"
    assert render("chatml", messages, chat_template=text) == "Hi"


def test_a_message_that_ends_in_a_tag_opens_nothing(folders: dict[str, Path]) -> None:
    """A user's own "<think>" at the end of what was written made all of the answer reasoning."""
    text = "{{ messages[0].content }}"
    conversation = form(folders["chatml"]).conversation(
        [user("<think>")], chat_template=text, add_generation_prompt=False
    )
    assert not conversation.rendered.turn.inside


def test_the_messages_stay_as_they_are(render: Render) -> None:
    """A conversation that was rendered could not be used again."""
    messages = [user("a"), assistant("b", tool_calls=None, reasoning="r"), user("c")]
    before = repr(messages)
    assert render("tools", messages) == render("tools", messages)
    assert repr(messages) == before


def test_a_start_token_that_no_file_names(tmp_path: Path, monkeypatch: Any) -> None:
    """A template that writes bos_token lost its start token in silence where tokenizer_config.json
    leaves it to a class, and no such class is there."""
    from rlt_core.api import special_tokens

    def of_class(folder: Path) -> Any:
        if not known:
            raise ValueError("no such class")
        return SimpleNamespace(special_tokens_map=known)

    known = {"bos_token": "<c>"}
    monkeypatch.setattr(special_tokens, "from_transformers", of_class)
    folder = chat_folder(tmp_path, "{{ bos_token }}{{ messages[0].content }}")
    config = folder / "tokenizer_config.json"
    for given, expected in (
        ({"bos_token": {"content": "<s>"}}, "<s>Hi"),
        ({"bos_token": None}, "Hi"),
        ({}, "<c>Hi"),
    ):
        config.write_text(json.dumps(given))
        assert form(folder).conversation([user("Hi")]).rendered.text == expected
    known.clear()
    with pytest.raises(CheckpointError, match="the chat template writes bos_token, and"):
        form(folder).conversation([user("Hi")])
