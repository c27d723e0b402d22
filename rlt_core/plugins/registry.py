"""What is installed: every spec with its source, looked up by kind and id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rlt_core.contract.errors import DuplicateIdError, PluginError, UnknownNameError
from rlt_core.contract.specs import (
    AttentionSpec,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelSpec,
    OpSpec,
    PromptModeSpec,
    Spec,
    StrategySpec,
)
from rlt_core.plugins.discovery import (
    BLOCK_VARIABLE,
    CORE,
    Candidate,
    PluginInfo,
    blocked_names,
    installed,
    load_plugin,
    new_manager,
)
from rlt_core.plugins.kinds import kind_of
from rlt_core.plugins.plan import Source

if TYPE_CHECKING:
    import typer

S = TypeVar(
    "S",
    ModelSpec,
    KVLayoutSpec,
    ExitPolicySpec,
    StrategySpec,
    PromptModeSpec,
    AttentionSpec,
    OpSpec,
)


class Registry:
    """All plugins of a process, and the specs of those that work.

    Broken plugins are in `plugins` with their reason and matter only when something of theirs is
    asked for; ids declared twice are in `duplicates`, which `check()` raises. `unknown_blocks`
    are the names in RLT_BLOCK that no installed plugin has.
    """

    def __init__(self, plugins: Iterable[PluginInfo], blocked: frozenset[str] = frozenset()):
        self.plugins = tuple(plugins)
        names = {name for p in self.plugins for name in (p.name, p.source.distribution)}
        # The core cannot be blocked: nothing would be left to run.
        self.unknown_blocks = tuple(sorted((blocked - names) | (blocked & {CORE, "rlt-core"})))
        self._manager = new_manager()
        for plugin in self.working:
            self._manager.register(plugin.module, name=plugin.name)
        self._entries, self.duplicates = _index(self.working)

    @property
    def working(self) -> tuple[PluginInfo, ...]:
        """The plugins whose specs are registered."""
        return tuple(plugin for plugin in self.plugins if plugin.state == "ok")

    @property
    def broken(self) -> tuple[PluginInfo, ...]:
        """The plugins that failed to load or declared something wrong."""
        return tuple(plugin for plugin in self.plugins if plugin.state == "broken")

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Every registered spec of every kind."""
        return tuple(spec for spec, _ in self._entries.values())

    def check(self) -> None:
        """Raise DuplicateIdError when two plugins declare one id."""
        if self.duplicates:
            raise self.duplicates[0]

    def all(self, kind: type[S]) -> tuple[S, ...]:
        """Every registered spec of a kind, the core's first, each plugin's in its order."""
        return tuple(spec for spec, _ in self._entries.values() if isinstance(spec, kind))

    def get(self, kind: type[S], name: str) -> S:
        """The spec of that kind and id.

        Raises UnknownNameError (nearest names, list), or PluginError when a broken plugin
        declares it, or when `name` is a broken plugin's own name.
        """
        found = self._entries.get((kind, name))
        if found is not None and isinstance(found[0], kind):
            return found[0]
        self._raise_if_broken(kind, name)
        label = kind_of(kind).label
        raise UnknownNameError(label, name, [spec.id for spec in self.all(kind)], self.hint())

    def hint(self) -> str | None:
        """One line on plugins that are installed and not usable, for messages; None if all are."""
        if self.broken:
            listed = ", ".join(str(plugin.source) for plugin in self.broken)
            return f"broken plugins: {listed} (rlt plugins says why)"
        blocked = [plugin.name for plugin in self.plugins if plugin.state == "blocked"]
        return f"blocked by {BLOCK_VARIABLE}: {', '.join(blocked)}" if blocked else None

    def source(self, spec: Spec) -> Source:
        """The plugin, distribution and version that declared a spec.

        A spec that no plugin declared (given by hand) has the distribution "(given)".
        """
        found = self._entries.get((type(spec), spec.id))
        if found is None or found[0] != spec:
            return Source(plugin="(given)", distribution="(given)", version="")
        return found[1]

    def named(self, spec: Spec) -> str:
        """A spec for messages: "exit policy 'gate' (rlt-core 0.1.0)"."""
        return f"{kind_of(spec).label} '{spec.id}' ({self.source(spec)})"

    def choose_op(
        self, op: str, candidates: Sequence[OpSpec], *, device: str, dtype: str, exact: bool
    ) -> OpSpec | None:
        """The first answer of the `rlt_choose_op` hooks; None when all pass.

        Raises PluginError, naming the plugin, for an answer that is not among the candidates.
        """
        given: dict[str, object] = {"op": op, "candidates": tuple(candidates)}
        given |= {"device": device, "dtype": dtype, "exact": exact}
        # pluggy calls the last of the list first; `trylast` ones stand at its beginning.
        for impl in reversed(self._manager.hook.rlt_choose_op.get_hookimpls()):
            chosen = impl.function(*(given[name] for name in impl.argnames))
            if chosen is None:
                continue
            if isinstance(chosen, OpSpec) and chosen in candidates:
                return chosen
            reason = f"rlt_choose_op chose {chosen!r} for '{op}', which is no candidate"
            raise PluginError(impl.plugin_name, reason)
        return None

    def add_commands(self, app: typer.Typer) -> tuple[PluginError, ...]:
        """Let plugins add their sub-commands; the failures come back, none stops the others."""
        failures = []
        for impl in reversed(self._manager.hook.rlt_add_commands.get_hookimpls()):
            try:
                impl.function(*([app] if "app" in impl.argnames else []))
            except Exception as error:
                reason = f"rlt_add_commands failed with {type(error).__name__}: {error}"
                failures.append(PluginError(impl.plugin_name, reason))
        return tuple(failures)

    def _raise_if_broken(self, kind: type[Spec], name: str) -> None:
        for plugin in self.broken:
            offers = {(type(spec), spec.id) for spec in plugin.specs}
            if (kind, name) in offers or name in (plugin.name, plugin.source.distribution):
                raise broken_error(plugin)


def discover() -> Registry:
    """The registry of this environment: entry points of the group `rlt`, less RLT_BLOCK."""
    return build_registry(installed(), blocked_names())


def build_registry(
    candidates: Iterable[Candidate], blocked: frozenset[str] = frozenset()
) -> Registry:
    """A registry of the given candidates; never raises because of one of them."""
    return Registry((load_plugin(candidate, blocked) for candidate in candidates), blocked)


def broken_error(plugin: PluginInfo) -> PluginError:
    """The error for whoever asks for something of a broken plugin."""
    fix = f"Fix: repair it, or pip install --force-reinstall {plugin.source.distribution}"
    return PluginError(f"{plugin.name} ({plugin.source})", plugin.reason or "broken", fix)


_Entries = dict[tuple[type[Spec], str], tuple[Spec, Source]]


def _index(plugins: Iterable[PluginInfo]) -> tuple[_Entries, tuple[DuplicateIdError, ...]]:
    entries: _Entries = {}
    duplicates = []
    claims: dict[tuple[str, str], Source] = {}
    for plugin in plugins:
        for spec in plugin.specs:
            for claim in _claims(spec):
                first = claims.setdefault(claim, plugin.source)
                if first is not plugin.source:
                    duplicates.append(_duplicate(*claim, first, plugin.source))
            entries.setdefault((type(spec), spec.id), (spec, plugin.source))
    return entries, tuple(duplicates)


def _claims(spec: Spec) -> list[tuple[str, str]]:
    """What only one plugin may declare: the id, and of a model the checkpoints it reads."""
    claims = [(kind_of(spec).label, spec.id)]
    if isinstance(spec, ModelSpec):
        claims += [("model type", name) for name in spec.model_types]
        claims += [("architecture", name) for name in spec.architectures]
    return claims


def _duplicate(kind: str, name: str, first: Source, second: Source) -> DuplicateIdError:
    names = [source.plugin for source in (first, second) if source.plugin != CORE]
    block = " or ".join(f"{BLOCK_VARIABLE}={plugin}" for plugin in dict.fromkeys(names))
    fix = f"Fix: uninstall one, or start with {block}"
    return DuplicateIdError(kind, name, [str(first), str(second)], fix)
