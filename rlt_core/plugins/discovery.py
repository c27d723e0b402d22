"""Finding plugins: entry points of the group `rlt`, each loaded in its own try."""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module, metadata
from typing import Literal

import pluggy

from rlt_core.contract.hookspecs import PROJECT, HookSpecs
from rlt_core.contract.specs import Spec
from rlt_core.plugins.check_spec import spec_faults
from rlt_core.plugins.kinds import KINDS, Kind
from rlt_core.plugins.plan import Source

CORE = "core"
BLOCK_VARIABLE = "RLT_BLOCK"
HOOKS = tuple(sorted(name for name in vars(HookSpecs) if name.startswith("rlt_")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plugin before it is loaded; `load` imports it and may raise anything."""

    source: Source
    load: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """A plugin after the attempt to load it.

    `reason` says why it is broken or blocked. A broken plugin's `specs` are those it declared
    rightly: they are not registered, and asking for one of them raises the reason.
    """

    source: Source
    state: Literal["ok", "broken", "blocked"]
    reason: str | None = None
    hooks: tuple[str, ...] = ()
    specs: tuple[Spec, ...] = ()
    module: object = None

    @property
    def name(self) -> str:
        return self.source.plugin


def installed() -> tuple[Candidate, ...]:
    """The core's own plugin, then one candidate per entry point, by name."""
    return _candidates(tuple((path, _changed(path)) for path in sys.path))


@lru_cache(maxsize=1)
def _candidates(folders: tuple[tuple[str, int], ...]) -> tuple[Candidate, ...]:
    """Reads the metadata of everything installed, again only once a folder of the import path has
    changed, which is what an installation does: a start asks several times."""
    points = sorted(metadata.entry_points(group=PROJECT), key=lambda point: point.name)
    return (core_candidate(), *(_candidate(point) for point in points))


def _changed(folder: str) -> int:
    """When an entry of the folder was last added or removed, in ns; 0 for one that is not there."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0


def core_candidate() -> Candidate:
    """The plugin with the core's own layouts, policies, strategies and operators."""
    try:
        version = metadata.version("rlt-core")
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    source = Source(plugin=CORE, distribution="rlt-core", version=version)
    return Candidate(source=source, load=lambda: import_module("rlt_core.plugins.core"))


def blocked_names() -> frozenset[str]:
    """The plugins that RLT_BLOCK names, separated by commas."""
    names = os.environ.get(BLOCK_VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def load_plugin(candidate: Candidate, blocked: frozenset[str]) -> PluginInfo:
    """Load one plugin and collect its specs; whatever goes wrong is in the result."""
    source = candidate.source
    if source.plugin != CORE and {source.plugin, source.distribution} & blocked:
        return PluginInfo(source=source, state="blocked", reason=f"blocked by {BLOCK_VARIABLE}")
    try:
        module = candidate.load()
        manager = new_manager()
        manager.register(module, name=source.plugin)
    # A plugin may fail in any way at import, SystemExit included; it must stop nobody else.
    except (Exception, SystemExit) as error:
        return PluginInfo(source=source, state="broken", reason=_failure(error))
    callers = manager.get_hookcallers(module) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    faults = [*_hook_faults(module, callers)]
    specs, more = _collect(module, callers)
    faults += more
    return PluginInfo(
        source=source,
        state="broken" if faults else "ok",
        reason="; ".join(faults) or None,
        hooks=hooks,
        specs=tuple(specs),
        module=module,
    )


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows the hooks of rlt and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    return manager


def _candidate(point: metadata.EntryPoint) -> Candidate:
    name = point.dist.name if point.dist else "(unknown distribution)"
    version = point.dist.version if point.dist else ""
    source = Source(plugin=point.name, distribution=name, version=version)
    return Candidate(source=source, load=point.load)


def _failure(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _hook_faults(module: object, callers: Iterable[pluggy.HookCaller]) -> Iterator[str]:
    for caller in callers:
        impl = next(impl for impl in caller.get_hookimpls() if impl.plugin is module)
        if not caller.has_spec() and not impl.optionalhook:
            near = get_close_matches(caller.name, HOOKS, n=1)
            hint = f", did you mean {near[0]}?" if near else f"; hooks are {', '.join(HOOKS)}"
            yield f"declares the unknown hook {caller.name}{hint}"
        if impl.wrapper or impl.hookwrapper:
            yield f"{caller.name} is a wrapper, which rlt does not run"
    marked = {caller.name for caller in callers}
    for name in sorted(set(HOOKS) - marked):
        function = getattr(module, name, None)
        if inspect.isfunction(function) and function.__module__ == getattr(module, "__name__", ""):
            yield f"{name} lacks the @hookimpl decorator, so it would never be called"


def _collect(module: object, callers: Iterable[pluggy.HookCaller]) -> tuple[list[Spec], list[str]]:
    """The specs that the plugin's hooks return, and what is wrong with the others."""
    specs: list[Spec] = []
    faults: list[str] = []
    named = {caller.name: caller for caller in callers}
    for kind in KINDS:
        if kind.hook in named:
            impls = named[kind.hook].get_hookimpls()
            function = next(impl.function for impl in impls if impl.plugin is module)
            _collect_one(kind, function, specs, faults)
    ids = Counter((type(spec), spec.id) for spec in specs)
    twice = [name for (_, name), count in ids.items() if count > 1]
    faults += [f"declares '{name}' more than once" for name in twice]
    return specs, faults


def _collect_one(
    kind: Kind, function: Callable[..., object], specs: list[Spec], faults: list[str]
) -> None:
    try:
        declared = function()
    except Exception as error:
        faults.append(f"{kind.hook} failed with {_failure(error)}")
        return
    if not isinstance(declared, (list, tuple)):
        wanted = f"a list of {kind.spec.__name__}"
        faults.append(f"{kind.hook} returned {type(declared).__name__}, not {wanted}")
        return
    for spec in declared:
        if not isinstance(spec, kind.spec):
            got = type(spec).__name__
            faults.append(f"{kind.hook} returned a list with {got}, not {kind.spec.__name__}")
            continue
        wrong = list(spec_faults(spec))
        faults.extend(f"{kind.hook}: {fault}" for fault in wrong)
        if not wrong:
            specs.append(spec)
