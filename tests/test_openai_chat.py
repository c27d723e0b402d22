"""The openai client in chats with a scripted engine, whose answer is what the user said."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from rlt_core.api.async_llm import AsyncLLM
from tests.chat_kit import chat_folder, user
from tests.scripted_engine import REFUSE, SLOW
from tests.server_kit import RunningServer, running

FACTORY = "tests.scripted_engine:build"
# Writes the first message, shows that there are tools, and opens a think block when told to. Its
# <tool_call> names the format of calls.
TEMPLATE = (
    "{{ messages[0].content }}{% if tools %}{% endif %}"
    "{% for message in messages %}{{ message.role[:0] }}{% endfor %}"
    "{% for call in messages[-1].tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is true %}<think>\n{% endif %}"
)
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "now"}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
]
CALLS = 'Wait. <tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>\n'
CALLS += '<tool_call>{"name": "now"}</tool_call>'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = chat_folder(tmp_path_factory.mktemp("chat"), TEMPLATE)
    llm = AsyncLLM(engine_factory=FACTORY, in_process=True, tokenizer=str(folder))
    with running(llm) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def create(client: OpenAI, text: str, **fields: Any) -> Any:
    """Asks so that `text` is the answer."""
    saved = 6 * text.count("<think>") + 7 * text.count("</think>")
    asked = {"max_tokens": len(text.encode()) - saved, "temperature": 0, **fields}
    messages: Any = [user(text)]
    return client.chat.completions.create(model="demo", messages=messages, **asked)


def summed(chunks: list[Any]) -> list[dict[str, Any]]:
    """The messages that the chunks of a stream add up to."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        delta = choice.delta
        if choice.index not in found:
            assert delta.role == "assistant"
        held = found.setdefault(choice.index, {"content": "", "reasoning": "", "calls": []})
        assert "finish" not in held, "something came behind the end"
        held["content"] += delta.content or ""
        held["reasoning"] += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or ():
            if call.id is not None:
                held["calls"].append([call.id, call.function.name, ""])
            held["calls"][call.index][2] += call.function.arguments
        if choice.finish_reason is not None:
            held["finish"] = choice.finish_reason
    return [found[index] for index in sorted(found)]


def parts(choice: Any) -> dict[str, Any]:
    """A whole choice in the same form."""
    message = choice.message
    return {
        "content": message.content or "",
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "calls": [[c.id, c.function.name, c.function.arguments] for c in message.tool_calls or ()],
        "finish": choice.finish_reason,
    }


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    assert all(call[0].startswith("call_") for call in found["calls"])
    assert len({call[0] for call in found["calls"]}) == len(found["calls"])
    return {**found, "calls": [call[1:] for call in found["calls"]]}


def both(client: OpenAI, text: str, **fields: Any) -> dict[str, Any]:
    """The answer as a whole, after checking that a stream adds up to it."""
    whole = create(client, text, **fields)
    (streamed,) = summed(list(create(client, text, stream=True, **fields)))
    found = without_ids(parts(whole.choices[0]))
    assert without_ids(streamed) == found
    return found


def test_a_plain_answer(client: OpenAI) -> None:
    """Text, role, end and usage of the simplest chat."""
    answer = create(client, "Hi there", seed=3)
    assert (answer.object, answer.model) == ("chat.completion", "demo")
    message = answer.choices[0].message
    assert (message.role, message.content, message.tool_calls) == ("assistant", "Hi there", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 8)
    assert answer.usage.mean_depth == 2.5
    assert both(client, "naïve 漢字 \N{GRINNING FACE}")["content"] == "naïve 漢字 \N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("abc</think>\n\nhello", True, "abc", "hello"),
        ("<think>abc</think>hello", False, "abc", "hello"),
        ("a b c", True, "a b c", ""),
        ("hello", False, "", "hello"),
    ],
)
def test_reasoning_is_apart(
    client: OpenAI, text: str, thinking: bool, reasoning: str, content: str
) -> None:
    """CASES A23, A38: reasoning was part of the content, or lost."""
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
    found = both(client, text, extra_body=extra)
    assert (found["reasoning"], found["content"]) == (reasoning, content)
    usage = create(client, text, extra_body=extra).usage
    assert bool(usage.completion_tokens_details.reasoning_tokens) == bool(reasoning)


def test_effort_is_what_the_template_reads(client: OpenAI) -> None:
    """An effort that no template reads was accepted and changed nothing."""
    create(client, "a", reasoning_effort="none")
    with pytest.raises(openai.BadRequestError, match="enable_thinking") as caught:
        create(client, "a", reasoning_effort="high")
    assert caught.value.param == "reasoning_effort"


def test_calls_of_tools(client: OpenAI) -> None:
    """CASES A43: calls stood in the content, or a stream named a call twice."""
    found = both(client, CALLS, tools=TOOLS)
    assert found == {
        "content": "Wait.",
        "reasoning": "",
        "calls": [["weather", '{"city": "Zürich"}'], ["now", "{}"]],
        "finish": "length",
    }
    ended = both(client, f"{CALLS}END", tools=TOOLS, stop="END", max_tokens=400)
    assert ended["finish"] == "tool_calls"
    assert both(client, "no call", tools=TOOLS)["content"] == "no call"
    thought = f"<think>{CALLS}</think>ok"
    assert both(client, thought, tools=TOOLS)["calls"] == []


def test_content_is_null_beside_calls_alone(client: OpenAI) -> None:
    """A client showed an empty bubble above every call."""
    text = '<tool_call>{"name": "now"}</tool_call>'
    message = create(client, text, tools=TOOLS).choices[0].message
    assert (message.content, len(message.tool_calls)) == (None, 1)


def test_a_single_call_ends_the_answer(client: OpenAI) -> None:
    """parallel_tool_calls=false gave two calls."""
    found = both(client, CALLS, tools=TOOLS, parallel_tool_calls=False)
    assert found["calls"] == [["weather", '{"city": "Zürich"}']]
    assert found["finish"] == "tool_calls"
    usage = create(client, CALLS, tools=TOOLS, parallel_tool_calls=False).usage
    assert usage.completion_tokens < len(CALLS.encode())


def test_tools_that_must_not_be_called(client: OpenAI) -> None:
    """tool_choice none still took calls out of the text."""
    found = both(client, CALLS, tools=TOOLS, tool_choice="none")
    assert (found["content"], found["calls"]) == (CALLS, [])


def test_calls_and_results_go_back_in(client: OpenAI, server: RunningServer) -> None:
    """An answer's message given back was refused, or its arguments were written as text."""
    message = create(client, CALLS, tools=TOOLS).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "dry"} for call in message.tool_calls
    ]
    history: Any = [user("Rain?"), message, *results]
    assert (
        client.chat.completions.create(
            model="demo", messages=history, tools=TOOLS, max_tokens=5, temperature=0
        )
        .choices[0]
        .message.content
        == "Rain?"
    )
    asked = {
        "messages": [user(""), message.to_dict()],
        "add_generation_prompt": False,
        "return_token_strs": True,
    }
    rendered = httpx.post(f"{server.url}/tokenize", json=asked).json()
    written = "".join(rendered["token_strs"])
    assert '{"name": "now", "arguments": {}}' in written


def test_siblings_of_a_chat(client: OpenAI) -> None:
    """The second answer went on in the first one's calls."""
    chunks = list(create(client, CALLS, tools=TOOLS, n=3, stream=True))
    found = [without_ids(each) for each in summed(chunks)]
    assert found == [both(client, CALLS, tools=TOOLS)] * 3
    assert len(create(client, CALLS, tools=TOOLS, n=3).choices) == 3


def test_stop_strings_and_ends(client: OpenAI) -> None:
    """CASES A75: a stop string over a border of tokens was missed, or a part of it was shown."""
    found = both(client, "abc ENDING", stop=["END"], max_tokens=100)
    assert (found["content"], found["finish"]) == ("abc ", "stop")
    choice = create(client, "abc ENDING", stop=["END"], max_tokens=100).choices[0]
    assert choice.stop_reason == "END"
    kept = {"include_stop_str_in_output": True}
    assert both(client, "abc ENDING", stop="END", extra_body=kept, max_tokens=100)["content"] == (
        "abc END"
    )


def test_chat_logprobs(client: OpenAI) -> None:
    """Tokens that are parts of a character had no bytes; a stream left logprobs out."""
    whole = create(client, "é!", logprobs=True, top_logprobs=2).choices[0].logprobs
    assert [entry.bytes for entry in whole.content] == [[0xC3], [0xA9], [0x21]]
    assert whole.content[2].token == "!"
    assert [(top.token, top.logprob) for top in whole.content[2].top_logprobs] == [
        ("!", -0.5),
        ('"', -1.5),
    ]
    chunks = list(create(client, "é!", logprobs=True, top_logprobs=2, stream=True))
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        for entry in (choice.logprobs.content if choice.logprobs else ())
    ]
    assert streamed == whole.content
    bare = create(client, "a", logprobs=True).choices[0].logprobs
    assert bare.content[0].top_logprobs == []
    assert create(client, "a").choices[0].logprobs is None


def test_what_is_asked_for_besides(client: OpenAI) -> None:
    """Depths, ids, metadata and tier were given unasked, or not at all."""
    plain = create(client, "abc").model_dump(exclude_unset=True)
    assert not {"metadata", "service_tier", "prompt_token_ids"} & set(plain)
    assert not {"exit_depths", "token_ids"} & set(plain["choices"][0])
    extra = {"return_exit_depths": True, "return_token_ids": True}
    full = create(
        client,
        "abc",
        extra_body=extra,
        metadata={"a": "b"},
        service_tier="auto",
        store=False,
        user="me",
        safety_identifier="me",
        prompt_cache_key="k",
        modalities=["text"],
    )
    assert (full.metadata, full.service_tier) == ({"a": "b"}, "default")
    assert full.prompt_token_ids == [97, 98, 99]
    assert full.choices[0].exit_depths == [1, 2, 3]
    assert full.choices[0].token_ids == [97, 98, 99]
    chunks = list(create(client, "abc", extra_body=extra, stream=True))
    depths = [d for chunk in chunks for choice in chunk.choices for d in choice.exit_depths]
    assert depths == [1, 2, 3]


def test_the_last_message_goes_on(client: OpenAI) -> None:
    """continue_final_message began a new turn."""
    history: Any = [user("ab")]
    extra = {"continue_final_message": True, "return_token_ids": True}
    answer = client.chat.completions.create(
        model="demo", messages=history, max_tokens=2, temperature=0, extra_body=extra
    )
    assert answer.choices[0].message.content == "ab"


def test_errors(client: OpenAI) -> None:
    """A wrong chat was a 500, or the error named a field of the engine's."""
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        ([user("a"), {"role": "system", "content": "b"}], {}, "messages[1]"),
        (
            [{"role": "user", "content": "\\ud800"}],
            {"extra_body": {"verbosity": "low"}},
            "verbosity",
        ),
        ([user("a" * 5000)], {}, "messages"),
        ([user("a")], {"extra_body": {"loops": 9}}, "loops"),
        ([user("a")], {"extra_body": {"chat_template": "x"}}, "chat_template"),
        (
            [user("a")],
            {"extra_body": {"chat_template_kwargs": {"tools": 1}}},
            "chat_template_kwargs",
        ),
        ([user("a")], {"functions": [{"name": "f"}]}, "functions"),
    ]
    for messages, fields, param in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="demo", messages=messages, **fields)
        assert caught.value.param == param, caught.value
    surrogate = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    headers = {"content-type": "application/json"}
    url = f"{client.base_url}chat/completions"
    answer = httpx.post(url, content=surrogate, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content")


def test_a_stream_that_fails_says_so(client: OpenAI, server: RunningServer) -> None:
    """CASES A72: a stream that failed ended as if it were whole."""
    asked: dict[str, Any] = {"prompt": [[SLOW, 5], [REFUSE]], "stream": True, "max_tokens": 4000}
    with pytest.raises(openai.APIError, match="refused by the engine"):
        list(client.completions.create(model="demo", **asked))
    with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=20) as answer:
        events = [line for line in answer.iter_lines() if line]
    assert answer.status_code == 200
    assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "invalid_request_error"
    assert "data: [DONE]" not in events
    assert idle(server)


def idle(server: RunningServer, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while server.llm.num_open and time.monotonic() < end:
        time.sleep(0.01)
    return server.llm.num_open == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_is_left_is_cancelled(server: RunningServer, stream: bool) -> None:
    """CASES A77: the client was gone before the first token, and nobody noticed."""
    body = {"prompt": [SLOW, 5], "max_tokens": 4000, "stream": stream, "ignore_eos": True}
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        while not server.llm.num_open:
            time.sleep(0.001)
    assert idle(server)


def test_tokenize_and_back(client: OpenAI, server: RunningServer, tmp_path: Path) -> None:
    """A conversation's ids had special tokens added twice."""

    def post(path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{server.url}{path}", json=body).json()

    assert post("/tokenize", {"prompt": "ab"})["tokens"] == [257, 97, 98]
    found = post(
        "/tokenize", {"prompt": "é", "add_special_tokens": False, "return_token_strs": True}
    )
    assert (found["count"], found["token_strs"]) == (2, ["bytes:\\xc3", "bytes:\\xa9"])
    chat = post("/tokenize", {"messages": [user("ab")]})
    assert (chat["tokens"], chat["max_model_len"]) == ([97, 98], 4096)
    assert post("/detokenize", {"tokens": [0xC3, 0xA9]}) == {"prompt": "é"}
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [user("a")]}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": TOOLS}, "tools"),
        ("/tokenize", {"messages": [user("a")], "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ):
        assert post(path, body)["error"]["param"] == param, body
