"""The one-file plugins of docs/examples: short, right by the conformance kit, and they run."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from rlt_core.plugins.discovery import core_candidate
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.testing import tiny_plugin
from rlt_core.testing.checks.kit import Kit
from tests.fresh import ROOT
from tests.plugin_kit import given
from tests.selection import mostly_slow

FILES = sorted((ROOT / "docs" / "examples").glob("rlt_*.py"))


def _registry(file: Path) -> Registry:
    """The example beside the core and the tiny model."""
    module = importlib.import_module(f"docs.examples.{file.stem}")
    name = file.stem.removeprefix("rlt_")
    plugins = (given(name, lambda: module), given("tiny", lambda: tiny_plugin))
    return build_registry([core_candidate(), *plugins])


def test_there_is_one_of_each_kind() -> None:
    """Guards the tutorial's last section: a layout, a policy and a strategy."""
    assert [file.stem for file in FILES] == ["rlt_confident", "rlt_gentle", "rlt_no_fill"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    """Guards the promise that a part of one's own is an afternoon's work: under 60 lines."""
    assert len(file.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("file", mostly_slow(FILES, FILES[-1]), ids=lambda file: file.stem)
def test_an_example_conforms(file: Path) -> None:
    """Guards what readers copy: every check of the kit passes, those on running engines too."""
    kit = Kit(file.stem.removeprefix("rlt_"), registry=_registry(file))
    outcomes = {outcome.id: outcome for outcome in kit.outcomes()}
    failed = {name: o.lines for name, o in outcomes.items() if o.state == "failed"}
    assert failed == {}
    assert sum(outcome.state == "passed" for outcome in outcomes.values()) > 6
