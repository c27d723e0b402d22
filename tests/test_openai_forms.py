"""Answers of a given form and calls that must be made, over HTTP, by a model of random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from llguidance import LLMatcher, LLTokenizer
from openai import OpenAI

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.server.openai.call_grammar import strict_calls
from rlt_core.server.openai.tools import ToolParam
from rlt_core.server.tool_calls.tagged import TaggedFormat
from rlt_core.testing.example_checkpoint import write_example
from tests.chat_kit import chat_folder, user
from tests.server_kit import running

SIZES: dict[str, Any] = {"kv_pages": 200, "max_num_seqs": 4, "max_num_tokens": 32}
TEMPLATE = "{{ messages[0].content }}{% if tools %}{% endif %}{#<tool_call>#}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 22]}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "g",
            "parameters": {
                "type": "object",
                "$defs": {"kind": {"enum": ["p", "q"]}},
                "properties": {"kind": {"$ref": "#/$defs/kind"}},
                "required": ["kind"],
                "additionalProperties": False,
            },
        },
    },
]
NAMED: Any = {"type": "function", "function": {"name": "g"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = write_example("ouro", tmp_path_factory.mktemp("ouro") / "random")
    chat_folder(folder, TEMPLATE)
    llm = AsyncLLM(folder, in_process=True, **SIZES)
    with (
        running(llm) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def chat(client: OpenAI, **fields: Any) -> Any:
    messages: Any = [user("Hi")]
    asked = {"model": "demo", "max_tokens": 120, "seed": 3, **fields}
    return client.chat.completions.create(messages=messages, **asked)


@pytest.mark.slow
def test_a_schema_is_kept(client: OpenAI) -> None:
    """response_format was read, and the answer was free."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    content = chat(client, response_format=wanted).choices[0].message.content
    jsonschema.validate(json.loads(content), SCHEMA)
    chunks = chat(client, response_format=wanted, stream=True)
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == content


def test_any_json_object(client: OpenAI) -> None:
    """json_object gave a text that was no object."""
    wanted: Any = {"type": "json_object"}
    content = chat(client, response_format=wanted, max_tokens=8).choices[0].message.content
    assert content.startswith("{")


def test_completions_of_a_form(client: OpenAI) -> None:
    """The other route knew no forms."""
    for form, allowed in (({"choice": ["yes", "no"]}, ("yes", "no")), ({"regex": "a|b"}, "ab")):
        found = client.completions.create(
            model="demo", prompt="Hi", seed=2, extra_body={"structured_outputs": form}
        )
        assert found.choices[0].text in allowed


def calls(message: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_must_be_made(client: OpenAI, choice: Any) -> None:
    """tool_choice required or a name let the model write what it liked; a schema lost its $defs."""
    message = chat(client, tools=TOOLS, tool_choice=choice).choices[0].message
    ((name, arguments),) = calls(message)
    assert message.content is None
    assert name in ("f", "g") if choice == "required" else name == "g"
    jsonschema.validate(arguments, TOOLS[name == "g"]["function"]["parameters"])


def test_strict_tools_are_called_by_their_schema() -> None:
    """strict was read and dropped: a free answer called a tool with whatever arguments."""
    tools = [ToolParam.model_validate(tool) for tool in TOOLS]
    strict = tools[0].model_copy(
        update={"function": tools[0].function.model_copy(update={"strict": True})}
    )
    grammar = strict_calls([strict, tools[1]], TaggedFormat(), None).grammar
    call = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
    good = call % ("f", '{"a": 1, "b": "x"}')
    assert accepts(grammar, "no call < at all > <tool_")
    assert accepts(grammar, f"so {good}\nand {good} end")
    assert accepts(grammar, call % ("g", '{"any": 7}'))
    assert not accepts(grammar, call % ("f", '{"a": 3, "b": "x"}'))
    assert not accepts(grammar, call % ("h", "{}"))
    assert not accepts(grammar, "<tool_call>\nf")
    assert "<[7]>" in (strict_calls([strict], TaggedFormat(), 7).grammar or "")


def accepts(grammar: str | None, text: str) -> bool:
    """Whether a text of bytes is an answer of the grammar."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar or ""))
    tokens = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def test_strict_tools_over_http(client: OpenAI) -> None:
    """A strict tool in a free answer was refused, or tools were shown that no answer could call."""
    function = {**TOOLS[0]["function"], "strict": True}
    tools: Any = [{"type": "function", "function": function}]
    answer = chat(client, tools=tools, max_tokens=8).choices[0]
    assert answer.finish_reason in ("length", "stop")
    wanted: Any = {"type": "json_object"}
    for shown in (tools, TOOLS):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, tools=shown, response_format=wanted)
        assert caught.value.param == "response_format"
    chat(client, tools=tools, response_format=wanted, tool_choice="none", max_tokens=2)


def test_forms_that_cannot_be_kept(client: OpenAI) -> None:
    """A schema that the grammar does not know was a 500, or was kept in part."""
    for field, value in (
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}},
        ),
        ("structured_outputs", {"regex": "("}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, extra_body={field: value})
        assert caught.value.param == field
