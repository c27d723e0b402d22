"""`rlt run --chat`: output, errors and the session, on the scripted engine."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlt_core.api.llm import LLM
from rlt_core.cli import main
from tests.chat_kit import chat_folder, template

Run = Callable[..., tuple[int, str, str]]
# The answer begins as the conversation does: with the content of its last message.
ECHO = (
    "{{ messages[-1].content }}|{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    "{% if think %}<think>\n{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return chat_folder(tmp_path / "model", ECHO)


@pytest.fixture
def rlt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `rlt run ...` on the scripted engine; the model is taken as it is named."""
    from rlt_core.cli import run_request, run_session

    scripted = functools.partial(LLM, engine_factory="tests.scripted_engine:build")
    monkeypatch.setattr(run_request, "find_model_folder", lambda name: str(name))
    monkeypatch.setattr(run_session, "LLM", scripted)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["run", *argv, "--in-process"])
        return code, *capsys.readouterr()

    return run


def test_a_prompt_is_a_message_of_the_user(rlt: Run, folder: Path) -> None:
    """The prompt went to the model without the template, or the system message was lost."""
    code, out, err = rlt(str(folder), "Hi", "--chat", "--max-tokens", "2")
    assert (code, out) == (0, "Hi\n")
    assert "exit depths: H(1) i(2)" in err
    assert "cut off by --max-tokens" in err
    argv = ("Hi", "--chat", "--system", "Be brief.", "--max-tokens", "3", "--json")
    _, out, _ = rlt(str(folder), *argv)
    found = json.loads(out)
    assert found["prompt"] == "Hi|system=Be brief.;user=Hi;"
    assert (found["text"], found["reasoning"]) == ("Hi|", None)
    assert "reasoning" not in json.loads(rlt(str(folder), "Hi", "--json")[1])


def test_reasoning_goes_to_stderr(rlt: Run, folder: Path) -> None:
    """With a pipe behind stdout the reasoning was part of the answer."""
    argv = (str(folder), "so</think>\n\nyes", "--chat", "--chat-option", "think=true")
    code, out, err = rlt(*argv, "--max-tokens", "8")
    assert (code, out) == (0, "yes\n")
    assert err.startswith("so\nexit depths: ")
    code, out, err = rlt(*argv, "--max-tokens", "2")
    assert (code, out) == (0, "\n")
    assert err.startswith("so\nexit depths: ")
    _, out, _ = rlt(*argv, "--max-tokens", "8", "--json")
    found = json.loads(out)
    assert (found["reasoning"], found["text"]) == ("so", "yes")
    _, out, err = rlt(*argv, "--max-tokens", "8", "--n", "2")
    assert out == "yes\nyes\n"
    assert err.startswith("so\nso\nexit depths: ")


def test_several_conversations_one_of_them_bad(rlt: Run, tmp_path: Path) -> None:
    """One conversation that the template refuses cost the others their answers."""
    text = "{% if messages[0].content == 'b' %}{{ raise_exception('No b.') }}{% endif %}" + ECHO
    folder = chat_folder(tmp_path / "picky", text)
    argv = [str(folder), "--chat", "--max-tokens", "1", "--prompt", "a"]
    code, out, err = rlt(*argv, "--prompt", "b", "--prompt", "c")
    assert (code, out) == (2, "a\nc\n")
    assert "prompt 2: messages: the chat template refuses the conversation: No b." in err


def test_other_templates(rlt: Run, folder: Path, tmp_path: Path) -> None:
    """--chat-template was not read, or its variables came as other types."""
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages[0].content }}{{ [a, b, c] }}")
    options = ["a=1", "b=x", 'c=[null, "y"]']
    argv = [part for option in options for part in ("--chat-option", option)]
    code, out, _ = rlt(str(folder), "Hi", "--chat", "--chat-template", str(file), "--json", *argv)
    assert code == 0
    assert json.loads(out)["prompt"] == "Hi[1, 'x', [None, 'y']]"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ("{folder}", "Hi", "--system", "x"),
            "--system 'x': it belongs to a chat\nFix: add --chat",
        ),
        (("{folder}", "Hi", "--chat-template", "x"), "--chat-template 'x': it belongs to a chat"),
        (("{folder}", "Hi", "--chat-option", "x=1"), "it belongs to a chat"),
        (("{folder}", "Hi", "--chat", "--chat-option", "x"), "must be of the form NAME=VALUE"),
        (("{folder}", "Hi", "--chat", "--chat-option", "tools=1"), "'tools' is an argument of"),
        (("{folder}", "Hi", "--chat", "--chat-template", "x"), "'x' is no file, no text"),
        (("{bare}", "Hi", "--chat"), "has no chat template"),
        (("{none}", "Hi", "--chat"), "has no tokenizer"),
        (("{folder}", "--chat", "--prompt-token-ids", "5"), "a chat is made of text"),
        (("{folder}", "--chat"), "no prompt for the chat, and no terminal to ask for one"),
        (("{broken}", "Hi", "--chat"), "chat_template.jinja, line 2: "),
        (("{tools}", "Hi", "--chat", "--chat-option", "enable_thinking=true", "--system", ""), ""),
    ],
)
def test_bad_input_gets_a_short_message(
    rlt: Run, folder: Path, tmp_path: Path, argv: tuple[str, ...], says: str
) -> None:
    """A chat that cannot work ended in a traceback, or only after the weights were loaded."""
    names = {
        "folder": folder,
        "bare": chat_folder(tmp_path / "bare"),
        "broken": chat_folder(tmp_path / "broken", "{{ 1 }}\n{% if %}"),
        "tools": chat_folder(tmp_path / "tools", template("tools")),
        "none": tmp_path,
    }
    code, out, err = rlt(*(part.format(**names) for part in argv))
    if not says:
        assert code == 0
        return
    assert (code, out) == (2, "")
    assert says in err
    assert 1 <= len([line for line in err.splitlines() if line.strip()]) <= 4


def test_a_session_needs_a_template_too(
    rlt: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights were loaded before a session said that there is no template."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("rlt_core.cli.run_session.LLM", None)  # no model may be started
    code, out, err = rlt(str(chat_folder(tmp_path / "bare")), "--chat")
    assert (code, out) == (2, "")
    assert "has no chat template" in err
    code, _, err = rlt(str(chat_folder(tmp_path / "full", ECHO)), "--chat", "--n", "2")
    assert (code, err) == (2, "--n 2: a session goes on from one answer\n")
