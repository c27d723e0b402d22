"""All checks of one plugin: which there are, and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlt_core.contract.errors import CheckpointError, OptionError, PluginError, UnknownNameError
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.discovery import PluginInfo
from rlt_core.plugins.model_folder import find_checkpoint
from rlt_core.plugins.registry import Registry, discover
from rlt_core.testing.checks.catalog import CHECKS, SUBJECTS
from rlt_core.testing.checks.check import (
    CannotRun,
    Check,
    CheckFailed,
    Outcome,
    case_id,
    one_line,
)
from rlt_core.testing.checks.subjects import Bench, ModelSubject, PartSubject, PluginSubject

Subject = PluginSubject | PartSubject[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One check of one subject."""

    check: Check
    subject: Subject

    @property
    def id(self) -> str:
        """`name`, or `name[part]`."""
        return case_id(self.check, self.subject.name)


class Kit:
    """The checks of the plugin called `name` (entry point or distribution); see `conformance`."""

    def __init__(
        self,
        name: str,
        *,
        registry: Registry | None = None,
        weights: str | Path | None = None,
        expected_failures: Mapping[str, str] | None = None,
    ) -> None:
        registry = registry or discover()
        self.plugin = find_plugin(name, registry)
        folder = _folder_model(weights, self.plugin, registry)
        subjects = _subjects(Bench(self.plugin, registry), folder)
        self.cases = tuple(_cases(subjects))
        self._expected = dict(expected_failures or {})
        _check_expected(self._expected, self.cases)
        self._done: dict[str, Outcome] = {}

    def run(self, case: Case) -> Outcome:
        """The outcome of a case; those that it comes after run first. Each runs once."""
        if case.id not in self._done:
            self._done[case.id] = self._run(case)
        return self._done[case.id]

    def outcomes(self) -> Iterator[Outcome]:
        """All of them, in order."""
        return (self.run(case) for case in self.cases)

    def _run(self, case: Case) -> Outcome:
        if reason := self._why_not(case):
            return _outcome(case, "skipped", reason=reason)
        try:
            with torch.inference_mode():
                case.check.run(case.subject)
        except CannotRun as cannot:
            return _outcome(case, "skipped", reason=str(cannot))
        except CheckFailed as failed:
            return self._failed(case, failed.expected, failed.got)
        except (Exception, SystemExit) as error:  # a plugin's own code may raise anything
            return self._failed(case, "no error", one_line(error))
        return self._passed(case)

    def _passed(self, case: Case) -> Outcome:
        reason = self._reason(case)
        if reason is None:
            return _outcome(case, "passed")
        got = "it passes: take it out of the table"
        return _outcome(case, "failed", expected=f"the failure of the table ({reason})", got=got)

    def _failed(self, case: Case, expected: str, got: str) -> Outcome:
        reason = self._reason(case)
        if reason is None:
            return _outcome(case, "failed", expected=expected, got=got)
        return _outcome(case, "expected", expected=expected, got=got, reason=reason)

    def _reason(self, case: Case) -> str | None:
        return self._expected.get(case.id, self._expected.get(case.check.name))

    def _why_not(self, case: Case) -> str:
        subject, word = case.subject, case.check.word
        if not _promised(case.check, subject):
            return f"'{subject.name}' does not promise {''.join(word or '')}"
        if subject.cannot:
            return subject.cannot
        for before in case.check.after:
            for other in self._cases_of(before, subject):
                state = self.run(other).state
                # An expected failure has its reason: what comes after may well hold.
                if state in _VERB and _promised(before, other.subject):
                    return f"it comes after {before.name}, which {_VERB[state]}"
        return ""

    def _cases_of(self, check: Check, subject: Subject) -> list[Case]:
        names = ("", subject.name)
        return [c for c in self.cases if c.check is check and c.subject.name in names]


def _promised(check: Check, subject: Subject) -> bool:
    return check.word is None or subject.promises(check.word)


_VERB = {"failed": "failed", "skipped": "was skipped"}


def find_plugin(name: str, registry: Registry) -> PluginInfo:
    """The installed plugin with that entry-point name or distribution.

    Raises UnknownNameError with the nearest names and the list, or PluginError when it is blocked.
    """
    for plugin in registry.plugins:
        if name in (plugin.name, plugin.source.distribution):
            if plugin.state == "blocked":
                raise PluginError(plugin.name, plugin.reason or "blocked")
            return plugin
    names = [plugin.name for plugin in registry.plugins]
    near = [plugin.source.distribution for plugin in registry.plugins]
    shown = name.removeprefix("rlt-") if name not in near else name
    raise UnknownNameError("plugin", shown, names, "Fix: pip install it, or see rlt plugins")


def _folder_model(
    weights: str | Path | None, plugin: PluginInfo, registry: Registry
) -> tuple[ModelSpec, Path] | None:
    """The checkpoint folder and the model of this plugin that reads it."""
    if weights is None:
        return None
    found = find_checkpoint(str(weights), None, registry)
    if found.model not in plugin.specs:
        owner = registry.source(found.model)
        raise CheckpointError(
            str(weights),
            f"is read by the model '{found.model.id}' of {owner}, not by {plugin.name}",
            f"Fix: rlt check {owner.plugin} --weights {weights}",
        )
    return found.model, Path(found.path)


def _subjects(bench: Bench, folder: tuple[ModelSpec, Path] | None) -> Iterator[Subject]:
    yield PluginSubject(bench)
    if bench.plugin.state != "ok":
        return
    for spec in bench.plugin.specs:
        if isinstance(spec, ModelSpec):
            yield ModelSubject(spec, bench, folder[1] if folder and folder[0] is spec else None)
        elif type(spec) in SUBJECTS:
            yield SUBJECTS[type(spec)](spec, bench)


def _cases(subjects: Iterator[Subject]) -> Iterator[Case]:
    for subject in subjects:
        yield from (Case(check, subject) for check in CHECKS if check.kind == subject.kind)


def _check_expected(expected: Mapping[str, str], cases: tuple[Case, ...]) -> None:
    known = {name for case in cases for name in (case.id, case.check.name)}
    for name, reason in expected.items():
        if name not in known:
            raise UnknownNameError("check", name, known)
        if not str(reason or "").strip():
            fix = "Fix: say why the check fails and when it will not"
            raise OptionError("expected_failures", name, "has no reason", fix)


def _outcome(case: Case, state: Any, **told: str) -> Outcome:
    return Outcome(check=case.check, subject=case.subject.name, state=state, **told)
