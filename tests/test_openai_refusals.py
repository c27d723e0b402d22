"""What a refused request is told: the field by its place in the JSON, and what would be right."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.server.app import create_app
from rlt_core.server.settings import ServerSettings
from tests.app_kit import FAST, client_of, listening, run, scripted, settings
from tests.chat_kit import chat_folder

IDS = FAST["prompt_token_ids"]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


async def refusal(client: httpx.AsyncClient, route: str, **body: Any) -> tuple[str, str]:
    """The field and the message."""
    answer = await client.post(route, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"], answer.json()["error"]["message"]


def test_a_body_without_its_content_type() -> None:
    """`curl -d '{...}'` sends a form; it was told to send a dictionary, which it had sent."""

    async def scene() -> None:
        async with client_of(create_app(scripted(), settings())) as client:
            for kind in ("application/x-www-form-urlencoded", "text/plain"):
                answer = await client.post(
                    "/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": kind}
                )
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, "body")
                assert "Content-Type must be application/json" in error["message"]
                assert "Fix: curl -H 'Content-Type: application/json'" in error["message"]

    run(scene())


TYPES: list[tuple[dict[str, Any], str, str]] = [
    ({"stop": ["a"] * 17}, "stop", "list should have at most 16 items, not 17"),
    ({"stop": ""}, "stop", "string should have at least 1 character"),
    ({"stop": 5}, "stop", "input should be a string or a list"),
    ({"stop": ["a", 5]}, "stop[1]", "input should be a valid string"),
    (
        {"extra": {"state_seed": "x"}},
        "extra.state_seed",
        "input should be a boolean, an integer or a number",
    ),
    (
        {"structured_outputs": {"json": 5}},
        "structured_outputs.json",
        "input should be an object or a boolean",
    ),
    ({"structured_outputs": 5}, "structured_outputs", "input should be a valid object"),
    (
        {"tool_choice": "any"},
        "tool_choice",
        "input should be 'none', 'auto' or 'required' or an object",
    ),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "input should be a string or a list",
    ),
]
FORMS = "input should be a text, a list of token ids, or a list of either"


@pytest.mark.parametrize(("fields", "name", "text"), TYPES)
def test_a_field_of_several_types_names_what_would_be_right(
    fields: dict[str, Any], name: str, text: str
) -> None:
    """The first of a field's types was reported, whichever was given: 17 strings should have been
    "a valid string"."""

    async def scene() -> None:
        async with client_of(create_app(scripted(), settings())) as client:
            found = await refusal(client, "/v1/chat/completions", **{**CHAT, **fields})
        assert found == (name, f"{name}: {text}")

    run(scene())


@pytest.mark.parametrize("prompt", [5, None, {"text": "a"}, True])
def test_a_prompt_of_none_of_its_forms(prompt: object) -> None:
    """A prompt that is no text and no list was told of texts alone."""

    async def scene() -> None:
        async with client_of(create_app(scripted(), settings())) as client:
            found = await refusal(client, "/v1/completions", prompt=prompt)
        assert found == ("prompt", f"prompt: {FORMS}")

    run(scene())


KINDS = "exactly one of json_object, json, regex, choice, grammar"
PARTS: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {}}, "structured_outputs", f"none given; {KINDS}"),
    (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        "structured_outputs",
        f"json and regex given; {KINDS}",
    ),
    (
        {"structured_outputs": {"json_object": False}},
        "structured_outputs",
        f"none given; {KINDS}",
    ),
    ({"exit_params": {"foo": 1}}, "exit_params.foo", "has no such parameter"),
    ({"exit_params": {"exit_threshold": 9}}, "exit_params.exit_threshold", "exit_"),
    ({"exit_threshold": 9}, "exit_threshold", "exit_threshold: "),
    ({"extra": {"a": 1}}, "extra.a", "extra.a: model 'scripted'"),
    ({"prompt": [[5], [900]]}, "prompt[1]", "token id 900"),
    ({"prompt": [[900]]}, "prompt[0]", "token id 900"),
    ({"prompt": [5, 900]}, "prompt", "token id 900"),
    ({"prompt": ["a", "b"]}, "prompt[0]", "tokenizer"),
    (
        {"prompt": [[5], [900]], "echo": True, "max_tokens": 0},
        "prompt[1]",
        "token id 900",
    ),
]


@pytest.mark.parametrize(("fields", "name", "text"), PARTS)
def test_what_is_inside_a_field_is_named_by_its_place(
    fields: dict[str, Any], name: str, text: str
) -> None:
    """A wrong option of the model, a wrong parameter of the policy were named alone, as if they
    were fields of the request; forms by Python's names; of several prompts, no one."""

    async def scene() -> None:
        async with scripted() as llm:
            async with client_of(create_app(llm, settings())) as client:
                found = await refusal(client, "/v1/completions", **{"prompt": IDS, **fields})
                assert found[0] == name
                assert found[1].startswith(f"{name}: ")
                assert text in found[1]

    run(scene())


def test_chats_name_it_by_its_place_too(tmp_path: Path) -> None:
    """The same of the other route."""

    async def scene() -> None:
        folder = chat_folder(tmp_path, "{{ messages[0].content }}")
        async with scripted(tokenizer=str(folder)) as llm:
            async with client_of(create_app(llm, settings())) as client:
                for part in ("extra", "exit_params"):
                    body = {**CHAT, part: {"foo": 1}}
                    found = await refusal(client, "/v1/chat/completions", **body)
                    assert found[0] == f"{part}.foo"

    run(scene())


def test_the_snippet_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/openai.md asked for a model that no server serves: its only snippet was a 404."""
    (snippet,) = re.findall(r"```python\n(.*?)```", Path("docs/openai.md").read_text(), re.DOTALL)
    assert "http://127.0.0.1:8000/v1" in snippet

    async def scene() -> None:
        llm = AsyncLLM(None, in_process=True, max_num_seqs=2, max_num_tokens=64)
        async with listening(llm, ServerSettings(port=0)) as url:
            await asyncio.to_thread(exec, snippet.replace("http://127.0.0.1:8000", url), {})

    run(scene())
    assert capsys.readouterr().out
