"""`rlt run --chat` without a prompt: a session in a terminal, on the scripted engine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.chat import ChatFormat
from rlt_core.api.outputs import CompletionOutput
from rlt_core.cli.run_chat import Dialog
from tests.chat_kit import assistant, chat_folder, user

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

    def drop_line(self) -> None:
        """Ctrl-C at the prompt, again where it fell between two looks of the line editor."""
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.until("> ", 5)
                return
        raise AssertionError(f"Ctrl-C gave no new prompt: {self.shown!r}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._fd)


def _own_terminal() -> None:
    # A shell starts its background jobs with Ctrl-C ignored; a terminal's own programs hear it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
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


@pytest.mark.slow
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
    session.type("unfinished")
    session.until("unfinished")
    session.drop_line()
    session.type("!!\n")  # the answer repeats the prompt: its history comes with it
    session.until("!!|user=one")
    session.until("> ")
    session.type("\n\x04")
    assert session.process.wait(100) == 0


@pytest.mark.slow
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


@pytest.mark.slow
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
    with _ctrl_c_stops(stream):  # type: ignore[arg-type]  # a stand-in
        os.kill(os.getpid(), signal.SIGINT)
    assert stream.stopped == 1
    assert signal.getsignal(signal.SIGINT) is before
