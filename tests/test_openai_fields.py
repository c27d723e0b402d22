"""Every field of the two OpenAI routes is honoured, or refused by its name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.call_grammar import call_schema
from rlt_core.server.openai.chat_request import ChatRequest
from rlt_core.server.openai.completion_request import CompletionRequest
from rlt_core.server.openai.messages import template_messages
from rlt_core.server.places import request_error

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "a", **fields})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": MESSAGES, **fields})


def problem(make: Any, /, **fields: Any) -> RequestError:
    """What a request is refused with, by its schema or by its combination."""
    try:
        made = make(**fields)
        if isinstance(made, ChatRequest):
            made.check_tools()
            template_messages(made.messages)
            made.params(None)
        else:
            made.params()
    except ValidationError as error:
        return request_error(error.errors(), {"prompt": "a", "messages": MESSAGES, **fields})
    except RequestError as error:
        return error
    raise AssertionError(f"{fields} was accepted")


# Field -> (a value, what SamplingParams hold then)
SHARED: dict[str, tuple[Any, dict[str, Any]]] = {
    "temperature": (0, {"temperature": 0.0}),
    "top_p": (0.5, {"top_p": 0.5}),
    "top_k": (-1, {"top_k": -1}),
    "min_p": (0.25, {"min_p": 0.25}),
    "n": (3.0, {"n": 3}),  # JSON has one kind of number
    "seed": (7, {"seed": 7}),
    "stop": ("END", {"stop": ("END",)}),
    "stop_token_ids": ([3, 4], {"stop_token_ids": (3, 4)}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "include_stop_str_in_output": (True, {"include_stop_str_in_output": True}),
    "skip_special_tokens": (False, {"skip_special_tokens": False}),
    "presence_penalty": (-2, {"presence_penalty": -2.0}),
    "frequency_penalty": (2.0, {"frequency_penalty": 2.0}),
    "repetition_penalty": (1.5, {"repetition_penalty": 1.5}),
    "logit_bias": ({"5": -100, "7": 1.5}, {"logit_bias": {5: -100.0, 7: 1.5}}),
    "priority": (-3, {"priority": -3}),
    "exit_policy": ("fixed", {"exit_policy": "fixed"}),
    "exit_threshold": (0.5, {"exit_threshold": 0.5}),
    "exit_params": ({"exit_threshold": 0.5}, {"exit_params": {"exit_threshold": 0.5}}),
    "loops": (3, {"loops": 3}),
    "min_loops": (2, {"min_loops": 2}),
    "max_loops": (2, {"max_loops": 2}),
    "trace": ([1, 2], {"trace": (1, 2)}),
    "extra": ({"state_scale": 0.5}, {"extra": {"state_scale": 0.5}}),
    "structured_outputs": ({"regex": "a+"}, {"structured": Structured(regex="a+")}),
}
COMPLETION: dict[str, tuple[Any, dict[str, Any]]] = {
    **SHARED,
    "max_tokens": (5, {"max_tokens": 5}),
    "logprobs": (2, {"logprobs": 2, "prompt_logprobs": None}),
    "best_of": (1, {}),
}
CHAT: dict[str, tuple[Any, dict[str, Any]]] = {
    **SHARED,
    "max_tokens": (5, {"max_tokens": 5}),
    "max_completion_tokens": (6, {"max_tokens": 6}),
    "logprobs": (True, {"logprobs": 0}),
    "response_format": (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
        {"structured": Structured(json_schema={"type": "null"})},
    ),
}
# Of the API, and honoured elsewhere than in SamplingParams, or without an effect that they ask for.
ELSEWHERE = {
    "completion": {"model", "prompt", "echo", "stream", "stream_options", "user"},
    "chat": {
        "messages",
        "model",
        "stream",
        "stream_options",
        "user",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning_effort",
        "metadata",
        "modalities",
        "service_tier",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    },
}


def changed(params: SamplingParams, other: SamplingParams) -> dict[str, Any]:
    names = SamplingParams.__dataclass_fields__
    return {n: getattr(params, n) for n in names if getattr(params, n) != getattr(other, n)}


@pytest.mark.parametrize("name", COMPLETION)
def test_a_completion_field_is_honoured(name: str) -> None:
    """A field was read and dropped, or null was another thing than leaving it out."""
    value, wanted = COMPLETION[name]
    plain = completion().params()
    assert changed(completion(**{name: value}).params(), plain) == {
        key: held for key, held in wanted.items() if held != getattr(plain, key)
    }
    assert completion(**{name: None}).params() == plain


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_field_is_honoured(name: str) -> None:
    """The same for chats, whose answers go on to the length limit by default."""
    value, wanted = CHAT[name]
    plain = chat().params(None)
    assert plain.max_tokens is None
    assert changed(chat(**{name: value}).params(None), plain) == wanted
    assert chat(**{name: None}).params(None) == plain


def test_the_whole_api_is_there_or_refused() -> None:
    """The client sent a field of the API that the server ignored in silence."""
    for kind, module, model, held in (
        ("completion", completion_create_params, CompletionRequest, COMPLETION),
        ("chat", chat_params, ChatRequest, CHAT),
    ):
        api = set(module.CompletionCreateParamsBase.__annotations__) | {"stream"}
        assert api <= set(held) | ELSEWHERE[kind] | set(model.refused), kind
        for name in model.refused:
            refused = problem(chat if kind == "chat" else completion, **{name: {}})
            assert refused.field == name
            assert "not supported" in str(refused)


BAD_SHARED: list[tuple[dict[str, Any], str]] = [
    ({"foo": 1}, "foo"),
    ({"temprature": 1}, "temprature"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"),
    ({"temperature": 1e-4}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 2**31}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"n": 1.5}, "n"),
    ({"repetition_penalty": 5e-324}, "repetition_penalty"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {str(i): 1 for i in range(513)}}, "logit_bias"),
    ({"min_loops": 3, "max_loops": 2}, "min_loops"),
    ({"loops": 0}, "loops"),
    ({"exit_threshold": math.nan}, "exit_threshold"),
    ({"extra": {"table": "/etc/passwd"}}, "extra.table"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"json": {"a": math.nan}}}, "structured_outputs.json"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ({"user": "\ud800"}, "user"),
    ({"model": 3}, "model"),
]
BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    *BAD_SHARED,
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "b"}, "suffix"),
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    *BAD_SHARED,
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "function", "content": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a", "foo": 1}]}, "messages[0].foo"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": NAMED, "response_format": {"type": "json_object"}},
        "response_format",
    ),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
    ),
    ({"store": True}, "store"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"reasoning_effort": "most"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "named"), BAD_COMPLETION)
def test_a_wrong_completion_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    """CASES A72, A87: a number as text, NaN, a lone surrogate, an empty list were a 500 later on,
    or changed the answer in silence."""
    found = problem(completion, **fields)
    assert found.field == named
    json.dumps(str(found), ensure_ascii=False).encode()


@pytest.mark.parametrize(("fields", "named"), BAD_CHAT)
def test_a_wrong_chat_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    """The same for chats; pictures and sounds among them."""
    assert problem(chat, **fields).field == named


def test_prompts_in_four_forms() -> None:
    """A list of token ids was taken for a list of prompts."""
    assert completion(prompt="ab").prompts == ["ab"]
    assert completion(prompt=["a", "b"]).prompts == ["a", "b"]
    assert completion(prompt=[1, 2]).prompts == [{"prompt_token_ids": [1, 2]}]
    assert completion(prompt=[[1], [2, 3]]).prompts == [
        {"prompt_token_ids": [1]},
        {"prompt_token_ids": [2, 3]},
    ]


def test_echo_asks_for_the_prompts_logprobs() -> None:
    """CASES A87: echo with max_tokens 0 stopped an engine."""
    params = completion(echo=True, logprobs=1, max_tokens=0).params()
    assert (params.logprobs, params.prompt_logprobs, params.max_tokens) == (1, 1, 1)
    assert completion(echo=True).params().prompt_logprobs is None


def test_messages_as_templates_read_them() -> None:
    """A template wrote Python's form of a list, None for a missing text, or JSON inside JSON."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    empty = {"id": "d", "function": {"name": "f", "arguments": ""}}
    found = template_messages(
        chat(
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
                {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "reasoning": "so",
                    "tool_calls": [call, empty],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ]
        ).messages
    )
    called = {"name": "f", "arguments": {"a": 1}}
    assert found == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "so",
            "tool_calls": [
                {"id": "c", "type": "function", "function": called},
                {"id": "d", "type": "function", "function": {"name": "f", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    for arguments in ("{", "[]", "null"):
        wrong = {"id": "c", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "assistant", "tool_calls": [wrong]}]
        where = "messages[0].tool_calls[0].function.arguments"
        assert problem(chat, messages=messages).field == where


def test_which_tools_are_shown_and_forced() -> None:
    """A model that must not call anything was shown the tools all the same."""
    other = {"type": "function", "function": {"name": "g"}}
    both = {"tools": [TOOL, other]}
    assert [t.function.name for t in chat(**both).shown_tools] == ["f", "g"]
    assert chat(**both).forced_tools == []
    assert chat(**both, tool_choice="none").shown_tools == []
    assert len(chat(**both, tool_choice="required").forced_tools) == 2
    (named,) = chat(**both, tool_choice=NAMED).forced_tools
    assert named.function.name == "f"


def test_references_of_a_tools_schema_follow_it() -> None:
    """A schema with $defs lost them inside the schema of the call."""
    schema = {"$defs": {"x": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    other = {"type": "function", "function": {"name": "g", "parameters": schema}}
    one = call_schema(chat(tools=[tool]).shown_tools)
    reference = one["properties"]["arguments"]["properties"]["a"]["$ref"]
    assert reference == "#/properties/arguments/$defs/x"
    two = call_schema(chat(tools=[tool, other]).shown_tools)
    moved = two["anyOf"][1]["properties"]["arguments"]["properties"]["a"]["$ref"]
    assert moved == "#/anyOf/1/properties/arguments/$defs/x"
