"""What `rlt run` prints: text for people, or a JSON object a line."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

import typer

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import CompletionOutput, Increment, Logprob, RequestOutput
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.cli.run_request import RunRequest


class Output(Protocol):
    """Where answers go."""

    streams: bool

    def started(self, request: RunRequest, llm: LLM) -> None: ...

    def grew(self, increment: Increment) -> None:
        """A streamed answer has more (only when `streams`)."""
        ...

    def finished(self, output: RequestOutput, request: RunRequest, seconds: float) -> None: ...


class TextOutput:
    """The answer's text as it grows, then what it took. Notes and reasoning go to stderr."""

    def __init__(self) -> None:
        self.streams = True
        self._streamed = self._reasoned = False
        self._num = 0
        self._tokenizer: Tokenizer | None = None

    def started(self, request: RunRequest, llm: LLM) -> None:
        """Says which model answers when none was named, and shows the problem."""
        report, self._tokenizer = llm.report, llm.tokenizer
        if request.is_demo:
            typer.echo(
                f"no model named: the embedded demo answers ({report.model}, {report.loops} loops)",
                err=True,
            )
        if request.problem is not None:
            typer.echo(request.problem.prompt)

    def grew(self, increment: Increment) -> None:
        """Prints what came, at once."""
        self._show_reasoning(increment.reasoning)
        text = increment.text if self._streamed else increment.text.lstrip()
        if text and not self._streamed:
            self._end_reasoning()
        self._streamed = self._streamed or bool(text)
        typer.echo(text, nl=False)
        sys.stdout.flush()

    def finished(self, output: RequestOutput, request: RunRequest, seconds: float) -> None:
        """The rest: what was not streamed, depths, rate, and whether a problem was solved."""
        self._num += 1
        if output.error is not None:
            typer.echo(f"prompt {self._num}: {output.error}", err=True)
            return
        for completion in output.outputs:
            self._show(completion)
        problem = request.problem
        if problem is not None:
            right = (output.outputs[0].text or "").strip() == problem.answer.strip()
            typer.echo(f"expected: {problem.answer.strip()} ({'right' if right else 'wrong'})")
        # With a pipe behind stdout only the answer goes there.
        err = problem is None and not sys.stdout.isatty()
        for completion in output.outputs:
            if not request.is_session:
                typer.echo(f"exit depths: {self._depths(completion)}", err=err)
        typer.echo(_rate(output, seconds), err=err)
        if request.chat and any(c.finish_reason == "length" for c in output.outputs):
            typer.echo("cut off by --max-tokens or --max-model-len", err=True)

    def _show_reasoning(self, text: str) -> None:
        if text:
            typer.secho(text, nl=False, err=True, dim=True)
            sys.stderr.flush()
            self._reasoned = True

    def _end_reasoning(self) -> None:
        if self._reasoned:
            typer.echo("", err=True)
        self._reasoned = False

    def _depths(self, completion: CompletionOutput) -> str:
        """Each token with the loops it took: Ann(4) has(1)."""
        tokens, previous, shown = completion.token_ids, None, []
        for token, depth in zip(tokens, completion.exit_depths, strict=True):
            text = ""
            if self._tokenizer is not None:
                text = self._tokenizer.piece(previous, token).decode("utf-8", "replace").strip()
            shown.append(f"{text or token}({depth})")
            previous = token
        return " ".join(shown)

    def _show(self, completion: CompletionOutput) -> None:
        if not self._streamed and not self._reasoned:
            self._show_reasoning(completion.reasoning or "")
        self._end_reasoning()
        if completion.text is None:
            typer.echo(_numbers(completion.token_ids))
        elif self._streamed:
            typer.echo("")
        else:
            typer.echo(completion.text.strip())
        self._streamed = False


class JsonOutput:
    """One JSON object per request on stdout, nothing else there."""

    streams = False

    def started(self, request: RunRequest, llm: LLM) -> None:
        """Says on stderr which model answers when none was named."""
        if request.is_demo:
            typer.echo(f"no model named: the embedded demo answers ({llm.report.model})", err=True)

    def grew(self, increment: Increment) -> None:
        """Nothing: answers are printed whole."""

    def finished(self, output: RequestOutput, request: RunRequest, seconds: float) -> None:
        """Prints the object."""
        found = as_dict(output, is_chat=request.chat is not None)
        if request.problem is not None:
            found["expected"] = request.problem.answer.strip()
            found["grade"] = request.problem.grade
        typer.echo(json.dumps(found, ensure_ascii=False))


def as_dict(output: RequestOutput, *, is_chat: bool = False) -> dict[str, Any]:
    """A request as JSON: the first answer's fields, and all answers in `outputs` if n > 1. Those
    of a chat have `reasoning`."""
    found: dict[str, Any] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
    }
    if output.error is not None:
        return {**found, "error": str(output.error)}
    answers = [_completion(completion, is_chat) for completion in output.outputs]
    found.update(answers[0])
    if len(answers) > 1:
        found["outputs"] = answers
    usage = output.usage
    found["usage"] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "mean_depth": round(usage.mean_depth, 4),
    }
    found["sampling"] = output.sampling
    found["from_generation_config"] = list(output.from_generation_config)
    return found


def _completion(completion: CompletionOutput, is_chat: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "token_ids": completion.token_ids,
        **({"reasoning": completion.reasoning} if is_chat else {}),
        "text": completion.text,
        "exit_depths": completion.exit_depths,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "seed": completion.seed,
    }
    if completion.drafts is not None:
        drafts = completion.drafts
        found["drafts"] = {
            "checked": drafts.checked,
            "held": drafts.held,
            "wasted_loops": drafts.wasted_loops,
        }
    if completion.logprobs is not None:
        found["logprobs"] = [
            _chosen(token, table)
            for token, table in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
        found["cumulative_logprob"] = completion.cumulative_logprob
    return found


def _chosen(token: int, table: dict[int, Logprob]) -> dict[str, Any]:
    entries = {other: _entry(other, value) for other, value in table.items()}
    others = sorted(entries.values(), key=lambda entry: int(entry["rank"]))
    return {**entries[token], "top": others}


def _entry(token: int, value: Logprob) -> dict[str, Any]:
    return {
        "token_id": token,
        "token": value.decoded_token,
        "logprob": value.logprob,
        "rank": value.rank,
    }


def _rate(output: RequestOutput, seconds: float) -> str:
    usage = output.usage
    count = usage.completion_tokens
    rate = count / seconds if seconds else 0.0
    text = f"{count} tokens, {rate:.1f} tokens/s, mean depth {usage.mean_depth:.2f}"
    drafts = [answer.drafts for answer in output.outputs if answer.drafts is not None]
    checked, held = sum(d.checked for d in drafts), sum(d.held for d in drafts)
    return f"{text}, {held} of {checked} guesses held" if checked else text


def _numbers(values: list[int]) -> str:
    return " ".join(map(str, values))
