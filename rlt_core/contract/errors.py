"""Every error that rlt raises for a reader who can act on it.

RltError                     one to four lines, exit code 2, no traceback
├── PluginError              a plugin is broken, declares an unknown hook or a wrong spec
│   └── DuplicateIdError     two plugins register one id
├── UnknownNameError         a name that nothing registers (nearest names, list, command)
├── ConflictError            a combination that cannot work (all conflicts, re-checked fixes)
├── CheckpointError          a model folder that cannot be used
│   ├── ConfigError          config.json: a field is missing, unknown or contradictory
│   └── TensorError          safetensors: missing, left over, misshapen or damaged
├── OptionError              an engine or command-line option out of range
├── CapacityError            memory or pages do not suffice for what was asked
├── RequestError             one request is wrong (the others go on); HTTP 400
│   └── LengthError          its prompt is longer than a request may be
├── BusyError                the queue is full; HTTP 429
├── DeadlineError            a request took longer than it was given; HTTP 504
└── StageError               the stage process ended or does not answer; HTTP 503

Anything else that escapes is a fault of rlt and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class RltError(Exception):
    """Base of all errors with a reader who can act; `str()` is the whole message."""

    exit_code = 2


class PluginError(RltError):
    """A plugin cannot be used; `plugin` names it, `reason` says why."""

    def __init__(self, plugin: str, reason: str, fix: str | None = None) -> None:
        self.plugin, self.reason, self.fix = plugin, reason, fix
        super().__init__(_lines(f"plugin {plugin}: {reason}", fix))


class DuplicateIdError(PluginError):
    """Two plugins register the same id for the same kind of thing."""

    def __init__(self, kind: str, name: str, sources: Sequence[str], fix: str) -> None:
        self.kind, self.name, self.sources = kind, name, tuple(sources)
        reason = f"{kind} '{name}' is registered by {' and '.join(sources)}"
        super().__init__(sources[-1], reason, fix)


class UnknownNameError(RltError):
    """`name` is not among the `known` names of its `kind`."""

    def __init__(self, kind: str, name: str, known: Iterable[str], fix: str | None = None) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        self.nearest = tuple(difflib.get_close_matches(name, self.known, n=3))
        self.fix = fix
        hint = f" (did you mean {' or '.join(self.nearest)}?)" if self.nearest else ""
        there = ", ".join(self.known) if self.known else "none"
        super().__init__(_lines(f"unknown {kind} '{name}'{hint}", f"installed: {there}", fix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One pair that cannot work: both sides with plugin and version, and why."""

    left: str
    right: str
    reason: str

    def __str__(self) -> str:
        return f"{self.left} and {self.right}: {self.reason}"


class ConflictError(RltError):
    """A combination that cannot work; every fix listed was itself checked and passes."""

    def __init__(self, conflicts: Sequence[Conflict], fixes: Sequence[str]) -> None:
        self.conflicts, self.fixes = tuple(conflicts), tuple(fixes)
        fix = " | ".join(fixes) if fixes else "no installed combination serves this choice"
        super().__init__(_lines(*(str(c) for c in conflicts), f"Fix: {fix}"))


class CheckpointError(RltError):
    """A model folder that cannot be used; `path` is the folder or file."""

    def __init__(self, path: str, reason: str, fix: str | None = None) -> None:
        self.path, self.reason, self.fix = path, reason, fix
        super().__init__(_lines(f"{path}: {reason}", fix))


class ConfigError(CheckpointError):
    """A field of config.json is missing, unknown, of the wrong type or contradictory."""

    def __init__(self, path: str, field: str, reason: str, fix: str | None = None) -> None:
        self.field = field
        super().__init__(path, f"field '{field}' {reason}", fix)


class TensorError(CheckpointError):
    """Tensors of a checkpoint do not fit the model; the names are listed in the fields."""

    def __init__(
        self,
        path: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        misshapen: Sequence[str] = (),
        damaged: str | None = None,
    ) -> None:
        self.missing, self.unexpected = tuple(missing), tuple(unexpected)
        self.misshapen, self.damaged = tuple(misshapen), damaged
        parts = [
            f"{label} {len(names)}: {_some(names)}"
            for label, names in (
                ("missing", missing),
                ("left over", unexpected),
                ("misshapen", misshapen),
            )
            if names
        ]
        if damaged:
            parts.append(damaged)
        super().__init__(path, "tensors do not fit the model", "\n".join(parts))


class OptionError(RltError):
    """An option of the engine or the command line; `option` is its name as typed."""

    def __init__(self, option: str, value: object, reason: str, fix: str | None = None) -> None:
        self.option, self.value, self.reason, self.fix = option, value, reason, fix
        super().__init__(_lines(f"{option} {value!r}: {reason}", fix))


class CapacityError(RltError):
    """Memory or pages do not suffice; both numbers are in the message."""


class RequestError(RltError):
    """One request is wrong; `field` names the part of it. Other requests go on."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}")


class LengthError(RequestError):
    """A prompt of `num_tokens` tokens is longer than a request may be."""

    def __init__(self, field: str, reason: str, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        super().__init__(field, reason)


class BusyError(RltError):
    """Slots and queue are full; `retry_after` is a guess in whole seconds, at least 1."""

    def __init__(self, num_open: int, limit: int, retry_after: int) -> None:
        self.num_open, self.limit, self.retry_after = num_open, limit, retry_after
        super().__init__(
            f"{num_open} answers are in work and {limit} may be; try again in {retry_after} s"
        )


class DeadlineError(RltError):
    """A request had `seconds` and did not end in time; it was aborted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the request did not end within its {seconds:g} s and was aborted")


class StageError(RltError):
    """The stage process ended, failed or does not answer; `advice` is for whoever asked it."""

    def __init__(self, reason: str, advice: str | None = None) -> None:
        self.reason, self.advice = reason, advice
        super().__init__(", ".join(part for part in (reason, advice) if part))


def _lines(*parts: str | None) -> str:
    return "\n".join(part for part in parts if part)


def _some(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
