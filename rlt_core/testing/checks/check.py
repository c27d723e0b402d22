"""One check: a named function, what selects it, and what its failure says. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlt_core.contract.errors import RltError

PREFIX = "check_"
_HINT = "If this fails:"

State = Literal["passed", "failed", "skipped", "expected"]
Kind = Literal[
    "plugin",
    "model",
    "layout",
    "policy",
    "strategy",
    "prompt mode",
    "operator",
    "attention",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of one kind of subject.

    `name` is the function's without "check_"; `guards` and `hint` are its docstring before and
    after "If this fails:". It runs where the subject provides `word` (None: always), and when all
    of `after` have passed: a fault is told once, by the first check that sees it.
    """

    name: str
    kind: Kind
    run: Callable[[Any], None]
    guards: str
    hint: str
    word: str | None = None
    after: tuple[Check, ...] = ()


class CheckFailed(Exception):
    """What a check says when it fails: what was expected, and what came."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected, self.got = expected, got
        super().__init__(f"expected {expected}; got {got}")


class CannotRun(Exception):
    """A check cannot run here (no CUDA device, nothing to serve it); its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one check on one subject; `reason` says why it was skipped or expected."""

    check: Check
    subject: str
    state: State
    expected: str = ""
    got: str = ""
    reason: str = ""

    @property
    def id(self) -> str:
        """`name`, or `name[subject]` for a part of the plugin."""
        return case_id(self.check, self.subject)

    @property
    def lines(self) -> list[str]:
        """A failed check in four lines."""
        told = [f"{self.id}: {self.check.guards}", f"  expected: {self.expected}"]
        return [*told, f"  got: {self.got}", f"  hint: {self.check.hint}"]


def check(
    kind: Kind, *, word: str | None = None, after: tuple[Check, ...] = ()
) -> Callable[[Callable[[Any], None]], Check]:
    """Make a function `check_<what>` a check. Its docstring has a first part (what it guards) and
    a note after "If this fails:"."""

    def made(function: Callable[[Any], None]) -> Check:
        text = " ".join(inspect.cleandoc(function.__doc__ or "").split())
        guards, _, hint = (part.strip() for part in text.partition(_HINT))
        if not (function.__name__.startswith(PREFIX) and guards and hint):
            raise ValueError(f"{function.__name__} is no check_<what> with both parts of its docs")
        name = function.__name__.removeprefix(PREFIX)
        return Check(
            name=name, kind=kind, run=function, guards=guards, hint=hint, word=word, after=after
        )

    return made


def expect(holds: bool, expected: str, got: object) -> None:
    """Fail the check unless `holds`."""
    if not holds:
        raise CheckFailed(expected, str(got))


def case_id(made: Check, subject: str) -> str:
    """The name of a check on a subject; the plugin as a whole is the subject ""."""
    return f"{made.name}[{subject}]" if subject else made.name


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error of a plugin in one line: its type, what it says and where it came from."""
    text = "; ".join(line for line in str(error).splitlines() if line.strip())
    shown = text if len(text) <= limit else text[:limit] + " ..."
    place = "" if isinstance(error, RltError) else _place(error)
    return f"{type(error).__name__}: {shown}{place}"


def _place(error: BaseException) -> str:
    """The last frame that is the plugin's: neither torch's nor this kit's."""
    found, frame = "", error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        parts = code.co_filename.replace("\\", "/").split("/")
        if not {"torch", "checks", "importlib"} & {*parts} and not code.co_filename.startswith("<"):
            found = f" ({'/'.join(parts[-2:])}:{frame.tb_lineno}, {code.co_name})"
        frame = frame.tb_next
    return found
