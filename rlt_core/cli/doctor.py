"""`rlt doctor`: what is installed, what the machine offers, what is missing and how to get it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata

import typer

from rlt_core.cli.options import AsJson
from rlt_core.cli.output import print_columns, print_json
from rlt_core.contract.errors import RltError
from rlt_core.contract.specs import AttentionSpec, ModelSpec, OpSpec
from rlt_core.plugins.kinds import kind_of
from rlt_core.plugins.limits import lack_of
from rlt_core.plugins.model_folder import PUBLISHED, find_model_folder
from rlt_core.plugins.registry import Registry, discover

PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "pluggy",
    "typer",
    "rich",
    "msgspec",
    "pyzmq",
    "triton",
)
OPTIONAL = {"triton": "only GPU kernels use it"}
OK, MISSING = "ok", "missing"

Row = tuple[str, str, str]


def register(app: typer.Typer) -> None:
    """Add `rlt doctor` to the command line."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what the machine offers, what is missing and how to get it."""
    registry = discover()
    rows = [*_versions(), *_machine(), *_plugins(registry), *_extras(registry)]
    advice = list(_advice(registry))
    if as_json:
        facts = [dict(zip(("what", "found", "remark"), row, strict=True)) for row in rows]
        print_json({"facts": facts, "advice": advice})
        return
    print_columns(rows)
    typer.echo("")
    for line in advice or ["Nothing is missing."]:
        typer.echo(line)


def _versions() -> Iterator[Row]:
    yield "python", platform.python_version(), platform.platform()
    for name in PACKAGES:
        version = _version(name)
        yield name, version or MISSING, "" if version else OPTIONAL.get(name, "")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Row]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", str(usable), platform.machine()
    memory = _memory()
    if memory:
        yield "memory", f"{memory[0] / 2**30:.1f} GiB", f"{memory[1] / 2**30:.1f} GiB free"
    yield from _devices()


def _memory() -> tuple[int, int] | None:
    """(bytes of memory, bytes free), where the system tells."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES"} <= set(names):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")


def _devices() -> Iterator[Row]:
    if _version("torch") is None:
        return
    import torch

    yield "device cpu", OK, f"torch uses {torch.get_num_threads()} threads"
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        size = f"{about.total_memory / 2**30:.0f} GiB, capability {about.major}.{about.minor}"
        yield f"device cuda:{index}", about.name, size


def _plugins(registry: Registry) -> Iterator[Row]:
    for plugin in registry.plugins:
        count = len(plugin.specs)
        about = plugin.reason or (f"declares {count} parts" if count else "declares nothing yet")
        yield f"plugin {plugin.name}", f"{plugin.source} ({plugin.state})", about


def _extras(registry: Registry) -> Iterator[Row]:
    """What is chosen only where something more was installed or built: nobody must have it."""
    specs: list[AttentionSpec | OpSpec] = [*registry.all(AttentionSpec), *registry.all(OpSpec)]
    for spec in specs:
        if spec.extra is not None:
            found = spec.extra.found or "absent"
            yield f"{kind_of(spec).label} {spec.id}", found, lack_of(spec) or ""


def _advice(registry: Registry) -> Iterator[str]:
    """What is missing and the command that gets it."""
    for name in PACKAGES:
        if _version(name) is None and name not in OPTIONAL:
            yield f"{name} is missing: pip install {name}"
    there = {plugin.source.distribution for plugin in registry.plugins}
    for distribution in sorted({*PUBLISHED.values()} - there):
        yield f"{distribution} is not installed: pip install {distribution}"
    for plugin in registry.broken:
        yield f"plugin {plugin.name} ({plugin.source}) is broken: {plugin.reason}"
    yield from (str(error) for error in registry.duplicates)
    if registry.all(ModelSpec):
        yield from _demo_advice(registry)


def _demo_advice(registry: Registry) -> Iterator[str]:
    try:
        find_model_folder(None, registry)
    except RltError as error:
        yield str(error)
