"""`rlt plugins`: what is installed, what it declares, and what is broken. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from rlt_core.cli.options import AsJson
from rlt_core.cli.output import print_columns, print_json
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.discovery import BLOCK_VARIABLE, PluginInfo
from rlt_core.plugins.explain import option_dicts
from rlt_core.plugins.kinds import KINDS
from rlt_core.plugins.model_folder import INSTALL_A_MODEL
from rlt_core.plugins.registry import Registry, discover


def register(app: typer.Typer) -> None:
    """Add `rlt plugins` to the command line."""
    app.command("plugins")(list_plugins)


def list_plugins(
    as_json: AsJson = False,
    ops: Annotated[bool, typer.Option("--ops", help="List every operator candidate.")] = False,
) -> None:
    """List the installed plugins and what they declare.

    Exit code 2 when two plugins declare the same thing; a broken plugin is listed as broken.
    """
    registry = discover()
    if as_json:
        print_json(registry_dict(registry))
    else:
        print_columns(_rows(registry, ops=ops))
        for line in _remarks(registry):
            typer.echo(line)
    registry.check()


def registry_dict(registry: Registry) -> dict[str, object]:
    """Everything that is installed, as plain data."""
    return {
        "plugins": [_plugin_dict(plugin) for plugin in registry.plugins],
        "duplicates": [
            {"kind": error.kind, "id": error.name, "sources": list(error.sources)}
            for error in registry.duplicates
        ],
        "blocked_but_not_installed": list(registry.unknown_blocks),
    }


def _plugin_dict(plugin: PluginInfo) -> dict[str, object]:
    shown = plugin.specs if plugin.state == "ok" else ()
    declared = {
        kind.plural: [spec.id for spec in shown if isinstance(spec, kind.spec)] for kind in KINDS
    }
    return {
        "name": plugin.name,
        "distribution": plugin.source.distribution,
        "version": plugin.source.version,
        "state": plugin.state,
        "reason": plugin.reason,
        "hooks": list(plugin.hooks),
        **declared,
        "model_options": {
            spec.id: option_dicts(spec) for spec in shown if isinstance(spec, ModelSpec)
        },
    }


def _rows(registry: Registry, *, ops: bool) -> Iterator[tuple[str, str, str, str]]:
    yield "PLUGIN", "FROM", "STATE", "DECLARES"
    for plugin in registry.plugins:
        first, *more = _declared(plugin, ops=ops)
        yield plugin.name, str(plugin.source), plugin.state, first
        yield from (("", "", "", line) for line in more)


def _declared(plugin: PluginInfo, *, ops: bool) -> list[str]:
    if plugin.state != "ok":
        return [plugin.reason or ""]
    lines = []
    for kind in KINDS:
        ids = [spec.id for spec in plugin.specs if isinstance(spec, kind.spec)]
        if ids and kind.hook == "rlt_ops" and not ops:
            lines.append(f"operators: {len(ids)} candidates (rlt plugins --ops)")
        elif ids:
            lines.append(f"{kind.plural.replace('_', ' ')}: {', '.join(ids)}")
    for spec in plugin.specs:
        if isinstance(spec, ModelSpec) and spec.options:
            names = ", ".join(option.name for option in spec.options)
            lines.append(f"options of {spec.id}: {names}")
    if "rlt_add_commands" in plugin.hooks:
        lines.append("commands")
    return lines or ["declares nothing yet"]


def _remarks(registry: Registry) -> Iterator[str]:
    if registry.unknown_blocks:
        names = ", ".join(registry.unknown_blocks)
        yield f"{BLOCK_VARIABLE} names what is not installed or cannot be blocked: {names}"
    if not registry.all(ModelSpec):
        yield f"No model is installed: {INSTALL_A_MODEL}"
