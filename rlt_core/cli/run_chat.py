"""`rlt run --chat`: prompts as conversations, and a session in the terminal."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from rlt_core.api.chat import ChatFormat, Conversation
from rlt_core.api.chat_messages import Message
from rlt_core.api.llm import LLM
from rlt_core.api.outputs import CompletionOutput, RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.stream import RequestStream
from rlt_core.cli.run_output import Output
from rlt_core.cli.run_request import RunRequest
from rlt_core.contract.errors import OptionError, RequestError

_PROMPT = "> "


@dataclass(slots=True, kw_only=True)
class Dialog:
    """Messages so far, and how they are written. `system` opens every conversation."""

    format: ChatFormat
    system: str | None = None
    template: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    history: list[Message] = field(default_factory=list)

    def conversation(self, text: str) -> Conversation:
        """The history and one more message of the user; the history stays as it is."""
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*opening, *self.history, {"role": "user", "content": text}]
        return self.format.conversation(
            messages, chat_template=self.template, chat_template_kwargs=self.variables
        )

    def remember(self, text: str, answer: CompletionOutput) -> None:
        """Adds a turn; one that was stopped before anything came is forgotten."""
        reply: Message = {"role": "assistant", "content": answer.text or ""}
        if answer.reasoning:
            reply["reasoning_content"] = answer.reasoning
        elif not answer.text:
            return
        self.history += [{"role": "user", "content": text}, reply]


def talk(
    llm: LLM, dialog: Dialog, params: SamplingParams, output: Output, request: RunRequest
) -> None:
    """Reads messages and answers them until the input ends (Ctrl-D). Ctrl-C stops an answer; a
    message that cannot be answered is said so and forgotten."""
    _say(f"chat with {llm.report.model}: Ctrl-C stops an answer, Ctrl-D ends")
    for text in _lines():
        try:
            result, seconds = _answer(llm, dialog.conversation(text), params, output)
        except RequestError as error:
            _say(str(error))
        except KeyboardInterrupt:  # before the answer had begun
            _say("")
        else:
            output.finished(result, request, seconds)
            dialog.remember(text, result.outputs[0])


def read_variables(given: Sequence[str] | None) -> dict[str, Any]:
    """["enable_thinking=true"] as a dict, values as JSON where they are JSON. OptionError."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError("--chat-option", text, "it must be of the form NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _answer(
    llm: LLM, conversation: Conversation, params: SamplingParams, output: Output
) -> tuple[RequestOutput, float]:
    begin = time.perf_counter()
    stream = llm.stream(conversation, params)
    with _ctrl_c_stops(stream):
        for increment in stream:
            output.grew(increment)
    return stream.output, time.perf_counter() - begin


@contextlib.contextmanager
def _ctrl_c_stops(stream: RequestStream) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda number, frame: stream.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
    """Lines that say something; Ctrl-C drops the line that is being written."""
    with contextlib.suppress(ImportError):  # it is not built everywhere
        import readline  # noqa: F401 - gives `input` its keys and its history
    while True:
        try:
            line = _ask()
        except EOFError:
            _say("")
            return
        except KeyboardInterrupt:
            _say("")
            continue
        if line.strip():
            yield line


def _ask() -> str:
    if sys.stdout.isatty():
        return input(_PROMPT)
    typer.echo(_PROMPT, nl=False, err=True)  # what goes to stdout is for a pipe
    return input()


def _say(text: str) -> None:
    typer.echo(text, err=True)
