"""Checks of a plugin as a whole: its import, its hooks, its specs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import PluginError
from rlt_core.contract.specs import ExitPolicySpec, ModelSpec, ParamSpec, Spec
from rlt_core.plugins.kinds import KEEPERS, kind_of
from rlt_core.plugins.loading import load_object
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.subjects import PluginSubject

HEAVY = ("torch", "transformers", "triton")
_TIMEOUT_S = 120


@check("plugin")
def check_plugin_loads(plugin: PluginSubject) -> None:
    """The plugin imports, its hooks exist, and what they return are well-formed specs.

    If this fails: the reason is what `rlt plugins` lists; docs/hooks.md has every hook and field.
    """
    info = plugin.plugin
    expect(info.state == "ok", "a plugin that loads", info.reason)
    mine = [error for error in plugin.registry.duplicates if str(info.source) in error.sources]
    expect(not mine, "ids that no other plugin declares", "; ".join(map(str, mine)))
    expect(bool(info.hooks), "at least one hook", "none (is @hookimpl missing?)")


@check("plugin", after=(check_plugin_loads,))
def check_plugin_imports_light(plugin: PluginSubject) -> None:
    """Importing the plugin imports neither torch nor transformers, or `rlt --help` takes seconds.

    If this fails: name heavy modules in "package.module:Name" strings only, and move the imports
    out of the package's __init__.
    """
    name = getattr(plugin.plugin.module, "__name__", "")
    loaded = heavy_after(f"import {name}")
    expect(not loaded, f"import {name} to load none of {', '.join(HEAVY)}", ", ".join(loaded))


@check("plugin", after=(check_plugin_loads,))
def check_factories_load(plugin: PluginSubject) -> None:
    """Every factory, reader and example string names something that exists and can be called.

    If this fails: the string is "package.module:Name"; the module must import and hold the name.
    """
    for spec in plugin.plugin.specs:
        for field in ("factory", "reader", "example"):
            dotted = getattr(spec, field, None)
            if dotted is None:
                continue
            try:
                found = load_object(dotted, plugin.plugin.source)
            except PluginError as error:
                expect(False, f"{field} of '{spec.id}' to load", error.reason)
            else:
                expect(callable(found), f"{field} '{dotted}' to be callable", type(found).__name__)


@check("plugin", after=(check_plugin_loads,))
def check_words_kept(plugin: PluginSubject) -> None:
    """A part provides only words that its kind can keep (a model no `full_depth_kv`).

    If this fails: docs/hooks.md lists who promises which word; a word of your own has a dot.
    """
    for spec in plugin.plugin.specs:
        kind = kind_of(spec).label
        wrong = [word for word in sorted(spec.provides) if not _keeps(spec, word)]
        names = ", ".join("".join(word) for word in wrong)
        expect(not wrong, f"words that a {kind} can keep in provides of '{spec.id}'", names)


@check("plugin", after=(check_plugin_loads,))
def check_parameters_valid(plugin: PluginSubject) -> None:
    """Parameters have one name each, a range that holds something, and a default inside it.

    If this fails: correct the ParamSpec; `minimum` and `maximum` are inclusive unless
    `exclusive_minimum`.
    """
    for spec in plugin.plugin.specs:
        params = spec_params(spec)
        names = [param.name for param in params]
        expect(len({*names}) == len(names), f"one parameter a name in '{spec.id}'", names)
        for param in params:
            for fault in _param_faults(param):
                expect(False, f"a valid parameter {param.name} of '{spec.id}'", fault)


def spec_params(spec: Spec) -> tuple[ParamSpec, ...]:
    """The parameters of a policy, or the options of a model."""
    if isinstance(spec, ModelSpec):
        return spec.options
    return spec.params if isinstance(spec, ExitPolicySpec) else ()


def heavy_after(code: str, *args: str) -> list[str]:
    """Which heavy modules a fresh interpreter has imported after `code`."""
    report = f"import sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}", *args],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    expect(done.returncode == 0, f"a fresh interpreter to run: {code.splitlines()[0]}", said)
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def _keeps(spec: Spec, word: str) -> bool:
    # EXACT is an attention backend's word; an operator says it in its own field.
    return word not in {*Word} or KEEPERS[word] is type(spec)


def _param_faults(param: ParamSpec) -> Iterator[str]:
    low, high, value = param.minimum, param.maximum, param.default
    if low is not None and high is not None and (low > high):
        yield f"minimum {low} is above maximum {high}"
    if value is None:
        return
    if param.kind == "int" and type(value) is not int:
        yield f"default {value!r} is no whole number"
    below = low is not None and (value < low or (param.exclusive_minimum and value <= low))
    if below or (high is not None and value > high):
        yield f"default {value!r} is outside its range"
