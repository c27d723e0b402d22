"""`rlt run --chat`: output, errors and the session, on the scripted engine."""

from __future__ import annotations

import functools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.chat import ChatFormat
from rlt_core.api.llm import LLM
from rlt_core.api.outputs import CompletionOutput
from rlt_core.cli import main
from rlt_core.cli.run_chat import Dialog
from tests.chat_kit import assistant, chat_folder, template, user

Run = Callable[..., tuple[int, str, str]]
# The answer begins as the conversation does: with the content of its last message.
ECHO = (
    "{{ messages[-1].content }}|{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    "{% if think %}<think>\n{% endif %}"
)
SCRIPT = """
import functools, sys
from rlt_core.api.llm import LLM
from rlt_core.cli import main, run_request, run_session
run_request.find_model_folder = lambda name: name
run_session.LLM = functools.partial(LLM, engine_factory="tests.scripted_engine:build")
sys.exit(main(["run", *sys.argv[1:]]))
"""


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


class Terminal:
    """`rlt run` in a terminal of its own, with a stage process of its own."""

    def __init__(self, *argv: str, pipe: bool = False) -> None:
        self._fd, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *argv],
            stdin=child,
            stdout=subprocess.PIPE if pipe else child,
            stderr=child,
            preexec_fn=_own_terminal,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
            cwd=Path(__file__).resolve().parent.parent,
        )
        os.close(child)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, text: str, seconds: float = 100) -> str:
        """Waits for `text`; what was shown before it and with it, taken off."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"no {text!r} in {self.shown!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._fd, 4096).decode("utf-8", "replace")
                except OSError:  # Linux: the other side has closed
                    assert text in self.shown, f"it ended without {text!r}: {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._fd)


def _own_terminal() -> None:
    os.setsid()
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*argv: str, **options: Any) -> Terminal:
        made.append(Terminal(*argv, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.timeout(240)
def test_a_session_in_a_terminal(folder: Path, terminal: Callable[..., Terminal]) -> None:
    """The history was lost between turns, Ctrl-C ended the session or left the answer running,
    a stopped answer was not part of the history, and Ctrl-D did not end it."""
    session = terminal(str(folder), "--chat", "--max-tokens", "1000000", "--stop", ";")
    session.until("chat with scripted: Ctrl-C stops an answer, Ctrl-D ends")
    session.until("> ")
    session.type("one\n")
    session.until("one|user=one")
    session.until("tokens/s")
    session.until("> ")
    session.type("unfinished\x03")  # at the prompt Ctrl-C drops the line
    session.until("> ")
    session.type("!!\n")  # the answer repeats the prompt: its history comes with it
    session.until("!!|user=one")
    session.until("> ")
    session.type("\n\x04")
    assert session.process.wait(100) == 0


@pytest.mark.timeout(240)
def test_ctrl_c_stops_the_answer_only(folder: Path, terminal: Callable[..., Terminal]) -> None:
    """Ctrl-C killed the stage process, which shares the terminal, or the whole session."""
    session = terminal(str(folder), "--chat", "--max-tokens", "1000000", "--ignore-eos")
    session.until("> ")
    session.type("long\n")
    session.until("long|user=long;long|user=long;")
    session.type("\x03")
    session.until("tokens/s")
    session.until("> ")
    session.type("\x04")
    assert session.process.wait(100) == 0


@pytest.mark.timeout(240)
def test_a_session_in_json(folder: Path, terminal: Callable[..., Terminal]) -> None:
    """The prompt of the session was written among the objects; a turn that cannot be answered
    ended the session or stayed in the history."""
    session = terminal(str(folder), "--chat", "--json", "--max-tokens", "3", pipe=True)
    session.until("> ")
    for text in ("one", "x" * 4000, "two"):
        session.type(f"{text}\n")
        session.until("> ")
    session.type("\x04")
    out, _ = session.process.communicate(timeout=100)
    assert session.process.returncode == 0
    first, second = map(json.loads, out.decode().splitlines())
    assert (first["text"], first["reasoning"]) == ("one", None)
    assert second["prompt"] == "two|user=one;assistant=one;user=two;"


def test_what_a_session_remembers() -> None:
    """A stopped answer was forgotten with its question, or an empty one stayed in the history."""

    def answer(text: str, reasoning: str | None) -> CompletionOutput:
        return CompletionOutput(
            index=0,
            text=text,
            token_ids=[],
            exit_depths=[],
            seed=0,
            finish_reason="abort",
            reasoning=reasoning,
        )

    dialog = Dialog(format=ChatFormat(None, None))
    dialog.remember("a", answer("", None))
    dialog.remember("b", answer("", ""))
    assert dialog.history == []
    dialog.remember("c", answer("half", None))
    dialog.remember("d", answer("", "so"))
    assert dialog.history == [
        user("c"),
        assistant("half"),
        user("d"),
        assistant("", reasoning_content="so"),
    ]


def test_ctrl_c_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of Ctrl-C stayed behind after an answer, so that nothing could end rlt."""
    from rlt_core.cli.run_chat import _ctrl_c_stops

    class Stream:
        stopped = 0

        def stop(self) -> None:
            self.stopped += 1

    before, stream = signal.getsignal(signal.SIGINT), Stream()
    with _ctrl_c_stops(stream):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
    assert stream.stopped == 1
    assert signal.getsignal(signal.SIGINT) is before
