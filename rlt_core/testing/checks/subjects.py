"""What is checked: a plugin as a whole, and each part that it declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlt_core.contract.errors import ConfigError
from rlt_core.contract.specs import (
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    PromptModeSpec,
    Spec,
    StrategySpec,
)
from rlt_core.plugins.discovery import PluginInfo
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.model_folder import CONFIG, read_config
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve

if TYPE_CHECKING:
    from rlt_core.contract.protocols import WeightedModel
    from rlt_core.testing.checks.rig import Rig

S = TypeVar("S", bound=Spec)
SEED = 4  # of every random weight and input


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts are checked with: everything installed."""

    plugin: PluginInfo
    registry: Registry


class PluginSubject:
    """The plugin as a whole."""

    kind = "plugin"
    name = ""

    def __init__(self, bench: Bench) -> None:
        self.plugin, self.registry = bench.plugin, bench.registry

    def promises(self, word: str) -> bool:
        """Checks of the whole plugin are selected by no word."""
        return True

    @property
    def cannot(self) -> str:
        """Why nothing of it can be checked; "" when it can."""
        return ""


class PartSubject(Generic[S]):
    """One declared part; `make()` gives the object behind its factory."""

    kind = "part"

    def __init__(self, spec: S, bench: Bench) -> None:
        self.spec, self.bench = spec, bench
        self.name = spec.id
        self.source = bench.plugin.source

    def promises(self, word: str) -> bool:
        """Whether it provides the word."""
        return word in self.spec.provides

    @property
    def cannot(self) -> str:
        """Why nothing of it can be checked; "" when it can."""
        return ""

    def load(self) -> Any:
        """What the factory string names."""
        return load_object(self.spec.factory, self.source)

    def make(self) -> Any:
        """A new object of the factory."""
        return self.load()()


class LayoutSubject(PartSubject[KVLayoutSpec]):
    """A KV layout."""

    kind = "layout"


class PolicySubject(PartSubject[ExitPolicySpec]):
    """An exit policy."""

    kind = "policy"


class StrategySubject(PartSubject[StrategySpec]):
    """A scheduling strategy."""

    kind = "strategy"


class PromptModeSubject(PartSubject[PromptModeSpec]):
    """An order of prompt cells."""

    kind = "prompt mode"


@dataclass(slots=True)
class Kept:
    """What checks of one subject share, made when first asked for."""

    made: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The object of that name."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


class ModelSubject(PartSubject[ModelSpec]):
    """A model, with random weights by its example or with those of a checkpoint folder."""

    kind = "model"

    def __init__(self, spec: ModelSpec, bench: Bench, folder: Path | None = None) -> None:
        super().__init__(spec, bench)
        self.folder, self.kept = folder, Kept()

    @property
    def cannot(self) -> str:
        """A model needs a configuration to be built from."""
        if self.folder is None and self.spec.example is None:
            return "the spec names no example, and no --weights were given"
        return ""

    @cached_property
    def path(self) -> str:
        """What messages of the reader call the configuration."""
        return str(self.folder / CONFIG) if self.folder else str(self.spec.example)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json, or the example."""
        return self.sample if self.folder is None else dict(read_config(str(self.folder)))

    @cached_property
    def sample(self) -> dict[str, Any]:
        """The example, which says what its author means by every field; else the checkpoint's
        config.json, which may rely on defaults."""
        if self.spec.example is None:
            return self.config
        made = load_object(str(self.spec.example), self.source)()
        if not isinstance(made, Mapping):
            raise ConfigError(self.path, "example", f"is {type(made).__name__}, not a dict")
        return dict(json.loads(json.dumps(made)))

    def read(self, config: Mapping[str, Any], ignore: frozenset[str] = frozenset()) -> ModelShape:
        """What the model's reader makes of a configuration."""
        reader = load_object(self.spec.reader, self.source)
        shape: ModelShape = reader(dict(config), self.path, ignore)
        return shape

    @cached_property
    def shape(self) -> ModelShape:
        """The shape of the configuration."""
        return self.read(self.config)

    def plan(self, **options: Any) -> Plan:
        """The plan of a choice of this model on the CPU; raises ConflictError."""
        choice = Choice(model=self.spec.id, **{"dtype": "float32", **options})
        return resolve(choice, self.bench.registry, shape=self.shape)

    def build(self, dtype: str = "float32") -> WeightedModel:
        """A new model with its weights: the checkpoint's, or random ones."""
        import torch

        from rlt_core.runtime.weights import load_weights, random_weights

        kind = getattr(torch, dtype)
        model: WeightedModel = self.load()(self.shape, device=torch.device("cpu"), dtype=kind)
        if self.folder is not None:
            load_weights(model, self.folder)
        else:
            random_weights(model, SEED)
        return model

    @property
    def model(self) -> WeightedModel:
        """The float32 model that the checks share."""
        model: WeightedModel = self.kept.get("model", self.build)
        return model

    @property
    def rig(self) -> Rig:
        """Launches of that model's methods."""
        from rlt_core.testing.checks.rig import Rig

        rig: Rig = self.kept.get("rig", lambda: Rig(self.plan(), self.model))
        return rig
