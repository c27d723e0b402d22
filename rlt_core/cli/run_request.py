"""What `rlt run` was asked: which argument is the model, which prompts, which problem."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlt_core.contract.errors import CheckpointError, OptionError, RltError
from rlt_core.contract.specs import ModelSpec
from rlt_core.evaluate.problems import FILE_NAME, Problem, load_problems
from rlt_core.plugins.model_folder import find_model_folder
from rlt_core.plugins.registry import discover

_PATH_STARTS = ("/", "./", "../", "~", ".\\", "\\")


@dataclass(slots=True, kw_only=True)
class ChatRequest:
    """What `--chat` was given: the system message, the template and its variables."""

    system: str | None = None
    template: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RunRequest:
    """The command line, read. `resolve` must come first: it tells model and prompt apart."""

    model: str | None
    prompt: str | None
    prompts: list[str]
    token_ids: list[list[int]]
    seed: int | None
    options: dict[str, Any]
    params: dict[str, Any]
    chat: ChatRequest | None = None
    problem: Problem | None = None
    folder: str = ""
    texts: list[str] = field(default_factory=list)

    @property
    def is_demo(self) -> bool:
        """Whether the embedded demo answers."""
        return self.model is None

    @property
    def is_session(self) -> bool:
        """Whether messages are read from the terminal, one after another."""
        return self.chat is not None and not self.texts and sys.stdin.isatty()

    def resolve(self) -> None:
        """Finds the model's folder and the prompts. Raises RltErrors."""
        if self._first_is_prompt():
            self.model, self.prompt = None, self.model
        self.folder = self._find_folder()
        self.texts = [*([self.prompt] if self.prompt is not None else []), *self.prompts]
        self._check_chat()
        if self.texts or self.token_ids or self.is_session:
            return
        if self.model is not None:
            raise RltError(
                f"no prompt for {self.model}\n"
                f'Fix: rlt run {self.model} "some text", or --prompt-token-ids 5,17,3'
            )
        self.problem = _problem(Path(self.folder), self.seed or 0)
        self.texts = [self.problem.prompt]

    def all_prompts(self) -> list[Any]:
        """Texts first, then token ids, each in the order given."""
        return [*self.texts, *({"prompt_token_ids": ids} for ids in self.token_ids)]

    def _check_chat(self) -> None:
        if self.chat is None:
            return
        if self.token_ids:
            raise OptionError("--prompt-token-ids", self.token_ids[0], "a chat is made of text")
        if not self.texts and not self.is_session:
            raise RltError(
                "no prompt for the chat, and no terminal to ask for one\n"
                f'Fix: rlt run {self.model or ""}{" " if self.model else ""}--chat "some text"'
            )
        if self.is_session and self.params.get("n", 1) != 1:
            raise OptionError("--n", self.params["n"], "a session goes on from one answer")

    def _find_folder(self) -> str:
        try:
            return find_model_folder(self.model)
        except CheckpointError as error:
            # A name with white space is a prompt, whatever else was given.
            given = self.prompt or self.prompts or self.token_ids
            has_prompt = given and not _has_space(self.model or "")
            if self.model is None or os.path.exists(self.model) or has_prompt:
                raise
            hint = f"or, if it is a prompt for the demo: rlt run --prompt {self.model!r}"
            fix = "\n".join(part for part in (error.fix, hint) if part)
            raise CheckpointError(error.path, error.reason, fix) from error

    def _first_is_prompt(self) -> bool:
        """One argument alone: a folder, a model's id or a word is the model; other text is a
        prompt for the demo. (A misspelt folder is a word, and is reported as such.)"""
        name = self.model
        if name is None or self.prompt is not None or self.prompts or self.token_ids:
            return False
        if not name:
            return True
        if name.startswith(_PATH_STARTS) or os.path.exists(name):
            return False
        if name in {spec.id for spec in discover().all(ModelSpec)}:
            return False
        return _has_space(name)


def _has_space(text: str) -> bool:
    return any(char.isspace() for char in text)


def read_ids(option: str, text: str) -> list[int]:
    """ "5,17,3" as numbers; OptionError for anything else."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise OptionError(option, text, "it must be whole numbers: 5,17,3") from None


def _problem(folder: Path, number: int) -> Problem:
    problems = load_problems(folder)
    if not 0 <= number < len(problems):
        raise OptionError(
            "--seed", number, f"{FILE_NAME} has the problems 0 to {len(problems) - 1}"
        )
    return problems[number]
