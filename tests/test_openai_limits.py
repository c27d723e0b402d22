"""The OpenAI routes within what the server was started with: its limits, its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.cli import main
from rlt_core.cli.run import run as run_command
from rlt_core.cli.serve import serve
from rlt_core.server.app import create_app
from rlt_core.server.settings import ServerSettings
from tests.app_kit import FAST, client_of, listening, run, scripted, settings

IDS = FAST["prompt_token_ids"]
PROMPT = "Ann has 8. Oli has 7. Gus has Oli + 5. Gus?"
GREEDY = {"temperature": 0, "max_tokens": 8}


async def completion(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": IDS, "ignore_eos": True, **fields})


@pytest.mark.parametrize(("limit", "count"), [(5, 5), (16, 16), (40, 16), (None, 16)])
def test_a_completion_of_no_said_length_keeps_the_servers_limit(
    limit: int | None, count: int
) -> None:
    """`rlt serve --max-tokens 5` refused every completion that said no max_tokens: the API's 16
    were put in, and then found to be too many."""

    async def scene() -> None:
        async with scripted() as llm:
            async with client_of(create_app(llm, settings(max_tokens=limit))) as client:
                unset, null = await completion(client), await completion(client, max_tokens=None)
                for answer in (unset, null):
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["usage"]["completion_tokens"] == count
                if limit is not None:
                    above = await completion(client, max_tokens=limit + 1)
                    assert above.status_code == 400
                    assert above.json()["error"]["param"] == "max_tokens"
                    assert f"may have {limit}" in above.json()["error"]["message"]

    run(scene())


async def answers_of_chat(url: str) -> tuple[httpx.Response, httpx.Response, bool]:
    """A chat, the same conversation as tokens, and whether the page offers chats."""
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        chat = await client.post("/v1/chat/completions", json={**body, **GREEDY})
        tokens = await client.post("/tokenize", json=body)
        return chat, tokens, (await client.get("/v1/engine")).json()["facts"]["has_chat"]


def demo() -> AsyncLLM:
    return AsyncLLM(None, in_process=True, max_num_seqs=2, max_num_tokens=64)


def test_a_chat_template_of_the_server(tmp_path: Path) -> None:
    """A model without a chat template could not be chatted with at all: the refusal named
    --chat-template, which rlt serve did not have."""
    file = tmp_path / "plain.jinja"
    file.write_text(Path("docs/examples/plain_chat.jinja").read_text())

    async def scene() -> None:
        chosen = ServerSettings(port=0, chat_template=str(file))
        async with listening(demo(), chosen) as url:
            file.unlink()  # read once, when the server began
            chat, tokens, has_chat = await answers_of_chat(url)
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                plain = await client.post("/v1/completions", json={"prompt": PROMPT, **GREEDY})
                same = await client.post(
                    "/tokenize", json={"prompt": PROMPT, "add_special_tokens": False}
                )
        assert chat.status_code == 200, chat.text
        assert chat.json()["choices"][0]["message"]["content"] == plain.json()["choices"][0]["text"]
        assert tokens.json()["tokens"] == same.json()["tokens"]
        assert has_chat

    run(scene())


def test_without_a_chat_template_the_fix_is_an_option_of_serve() -> None:
    """What a client was told to add to `rlt serve` was an unknown option there."""

    async def scene() -> None:
        async with listening(demo(), ServerSettings(port=0)) as url:
            chat, tokens, has_chat = await answers_of_chat(url)
        for answer in (chat, tokens):
            assert answer.status_code == 400
            assert "--chat-template FILE (rlt run, rlt serve)" in answer.json()["error"]["message"]
        assert not has_chat

    run(scene())


def test_serve_has_the_chat_template_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    """One option, one help text, one error; what is no template was told to the first client."""
    given, own = (
        get_type_hints(command, include_extras=True)["chat_template"].__metadata__[0]
        for command in (serve, run_command)
    )
    assert (given.help, given.metavar) == (own.help, own.metavar)
    assert main(["serve", "--port", "0", "--chat-template", "/no/file"]) == 2
    err = capsys.readouterr().err
    assert "chat_template: '/no/file' is no file" in err
    assert "loading" not in err


def test_a_text_that_is_no_template_is_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first client was told of a missing endif, and the server went on without chats."""
    file = tmp_path / "half.jinja"
    file.write_text("{% for m in messages %}\n{{ m['content'] }}\n{% if m %}")
    assert main(["serve", "--port", "0", "--chat-template", str(file)]) == 2
    err = capsys.readouterr().err
    assert f"chat_template: {file}, line 3: " in err
    assert "loading" not in err
    # A template that wants more of a conversation than there is here is one all the same.
    file.write_text("{{ messages[0]['content'] }}{{ raise_exception('no') }}")
    create_app(demo(), ServerSettings(port=0, chat_template=str(file)))
