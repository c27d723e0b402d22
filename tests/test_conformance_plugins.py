"""The plugins of this repository pass the conformance kit, with random weights and golden ones."""

from __future__ import annotations

import pytest

from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.discovery import CORE
from rlt_core.plugins.model_folder import find_checkpoint
from rlt_core.plugins.registry import discover
from rlt_core.testing.checks.kit import Kit
from rlt_core.testing.tiny_plugin import registry_with_tiny
from tests.engines import GOLDEN

REGISTRY = discover()
OURS = "rlt-"
PLUGINS = [
    plugin.name
    for plugin in REGISTRY.plugins
    if plugin.source.distribution.startswith(OURS) and plugin.specs
]
FOLDERS = [folder.name for folder in sorted(GOLDEN.iterdir()) if (folder / "config.json").is_file()]


def failures(kit: Kit) -> list[str]:
    """The lines of every failed check; skips are printed."""
    outcomes = list(kit.outcomes())
    for outcome in outcomes:
        if outcome.state == "skipped":
            print(f"skipped {outcome.id}: {outcome.reason}")
    return [line for o in outcomes if o.state == "failed" for line in o.lines]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_of_ours_conforms(name: str) -> None:
    """Guards our own plugins, and the kit against checks that nothing real can pass."""
    kit = Kit(name, registry=REGISTRY)
    assert failures(kit) == []
    models = [spec for spec in kit.plugin.specs if isinstance(spec, ModelSpec)]
    assert name == CORE or all(spec.example for spec in models), "a model without an example"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tiny_models_conform() -> None:
    """Guards the models that every other test runs on."""
    assert failures(Kit("tiny", registry=registry_with_tiny())) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_golden_checkpoint_conforms(folder: str) -> None:
    """Guards the same promises on checkpoints of the authors' own form, loaded strictly."""
    path = str(GOLDEN / folder)
    owner = REGISTRY.source(find_checkpoint(path, None, REGISTRY).model).plugin
    assert failures(Kit(owner, registry=REGISTRY, weights=path)) == []
