"""From what a user names to a checkpoint folder and the model that reads it.

A model is known by `model_type` or `architectures` of its config.json alone. Code that lies in a
checkpoint (`auto_map`) is never run.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from rlt_core.contract.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    RltError,
    UnknownNameError,
)
from rlt_core.contract.specs import ModelShape, ModelSpec
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.registry import Registry, broken_error, discover

# Where the model types live that rlt's own distributions read, for "pip install ...".
PUBLISHED = {"ouro": "rlt-ouro", "nanbeige": "rlt-nanbeige", "huginn_raven": "rlt-huginn"}
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder with a config.json, and the model that reads it. `notes` say what was picked."""

    path: str
    model: ModelSpec
    config: Mapping[str, object]
    notes: tuple[str, ...] = ()

    def shape(self, registry: Registry, ignore: frozenset[str]) -> ModelShape:
        """The shape that the model's reader takes from config.json. Raises ConfigError."""
        source = registry.source(self.model)
        reader = load_object(self.model.reader, source)
        shape = reader(dict(self.config), self.path, ignore)
        if not isinstance(shape, ModelShape):
            got = type(shape).__name__
            raise PluginError(str(source), f"{self.model.reader} returned {got}, not ModelShape")
        return shape


def find_model_folder(name: str | None = None, registry: Registry | None = None) -> str:
    """The folder of a checkpoint: a path, an installed model's id (its demo), or None (a demo)."""
    return find_checkpoint(name, None, registry or discover()).path


def find_checkpoint(name: str | None, model: str | None, registry: Registry) -> Checkpoint:
    """The checkpoint that `name` means, read by the model with id `model` if one is given.

    `name` is a folder, the id of an installed model that has a demo checkpoint, or None for the
    demo. Raises CheckpointError, ConfigError, UnknownNameError or RltError.
    """
    chosen = registry.get(ModelSpec, model) if model else None
    if name is None:
        return _demo(chosen or _demo_model(registry), registry, named=chosen is not None)
    if not os.path.exists(name):  # Path.exists raises for names that are too long
        by_id = [spec for spec in registry.all(ModelSpec) if spec.id == name]
        if by_id:
            return _demo(chosen or by_id[0], registry, named=True)
    path = str(_folder(name, registry))
    config = read_config(path)
    return Checkpoint(path=path, model=chosen or _recognise(config, path, registry), config=config)


def read_config(path: str) -> dict[str, object]:
    """config.json of a checkpoint folder. Raises CheckpointError."""
    file = Path(path) / CONFIG
    if not os.path.isfile(file):
        there = sorted(_entries(Path(path)))[:5]
        held = f"it holds {', '.join(there)}" if there else "it is empty"
        raise CheckpointError(path, f"the folder has no {CONFIG} ({held})", _FOLDER_FIX)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = f"cannot be read as JSON: {error}"
        raise CheckpointError(str(file), reason, "Fix: copy the file again") from error
    if not isinstance(config, dict):
        raise CheckpointError(str(file), f"holds {type(config).__name__}, not an object")
    return config


def no_model_error(registry: Registry) -> RltError:
    """Nothing to run: no installed plugin declares a model (with a demo)."""
    models = registry.all(ModelSpec)
    if models:
        listed = ", ".join(spec.id for spec in models)
        return RltError(
            f"no model was named, and none of the installed ones has a demo: {listed}\n"
            "Fix: name a checkpoint folder, or pip install rlt-ouro for its demo model"
        )
    hint = registry.hint()
    lines = ["no model is installed: rlt-core serves the models that plugins bring"]
    lines += [hint] if hint else []
    return RltError("\n".join([*lines, f"Fix: {INSTALL_A_MODEL}"]))


INSTALL_A_MODEL = "pip install rlt-ouro (brings Ouro and a demo model that needs no download)"
_FOLDER_FIX = "Fix: name the folder that holds config.json and model.safetensors"


def _demo_model(registry: Registry) -> ModelSpec:
    models = [spec for spec in registry.all(ModelSpec) if spec.demo]
    if not models:
        raise no_model_error(registry)
    return models[0]


def _demo(model: ModelSpec, registry: Registry, *, named: bool) -> Checkpoint:
    source = registry.source(model)
    if model.demo is None:
        with_demo = [spec.id for spec in registry.all(ModelSpec) if spec.demo]
        raise UnknownNameError(
            "demo model", model.id, with_demo, f"Fix: name a checkpoint folder of {model.id}"
        )
    package, _, folder = model.demo.partition("/")
    # The top-level package is found, not imported: find_spec runs none of its code.
    found = importlib.util.find_spec(package)
    roots = list(found.submodule_search_locations or []) if found else []
    places = [Path(root) / folder for root in roots]
    path = next((place for place in places if place.is_dir()), None)
    if path is None:
        raise PluginError(
            str(source),
            f"its demo '{model.demo}' is not in the installed package",
            f"Fix: pip install --force-reinstall {source.distribution}",
        )
    why = "" if named else "no model was named: "
    note = f"{why}the demo model of {source} is used"
    return Checkpoint(path=str(path), model=model, config=read_config(str(path)), notes=(note,))


def _folder(name: str, registry: Registry) -> Path:
    path = Path(name).expanduser()
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        parent = path.parent if path.name == CONFIG else None
        raise CheckpointError(
            name,
            "is a file, not a model folder",
            f"Fix: name the folder: {parent}" if parent else _FOLDER_FIX,
        )
    raise CheckpointError(name, "there is no such model folder", _missing_fix(name, path, registry))


def _entries(folder: Path) -> list[str]:
    """Names in a folder. Raises CheckpointError where it may not be read."""
    try:
        return os.listdir(folder)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise CheckpointError(str(folder), reason, "Fix: check its permissions") from error


def _missing_fix(name: str, path: Path, registry: Registry) -> str:
    parts = Path(name).parts
    if len(parts) == 2 and not os.path.isdir(path.parent) and not path.is_absolute():
        # rlt opens no connection by itself: a checkpoint is downloaded on purpose.
        return f"Fix: download it first: hf download {name} --local-dir {parts[1]}"
    siblings = _entries(path.parent) if os.path.isdir(path.parent) else []
    names = [*siblings, *(spec.id for spec in registry.all(ModelSpec))]
    near = get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {path.parent / near[0] if near[0] in siblings else near[0]}?"
    return _FOLDER_FIX


def _recognise(config: Mapping[str, object], path: str, registry: Registry) -> ModelSpec:
    """The model by model_type, or failing that by architectures. `auto_map` is not looked at."""
    model_type, names = config.get("model_type"), config.get("architectures")
    if model_type is not None and not isinstance(model_type, str):
        raise ConfigError(path, "model_type", f"is {model_type!r}, not a name")
    architectures = [str(name) for name in names] if isinstance(names, list) else []
    models = registry.all(ModelSpec)
    by_type = [spec for spec in models if model_type in spec.model_types]
    by_class = [spec for spec in models if {*spec.architectures} & {*architectures}]
    if by_type and by_class and by_type[0] not in by_class:
        reason = f"is '{model_type}', but architectures {architectures} are {by_class[0].id}'s"
        raise ConfigError(path, "model_type", reason)
    # A fine-tune may name a class of its own, and an old export no model_type.
    if by_type or (by_class and model_type is None):
        return (by_type or by_class)[0]
    if model_type is None and not architectures:
        raise ConfigError(path, "model_type", "is missing, and so is 'architectures'", _FOLDER_FIX)
    raise _unknown_type(model_type or architectures[0], registry)


def _unknown_type(name: str, registry: Registry) -> RltError:
    for plugin in registry.broken:
        models = [spec for spec in plugin.specs if isinstance(spec, ModelSpec)]
        if any(name in (*spec.model_types, *spec.architectures) for spec in models):
            return broken_error(plugin)
    known = [kind for spec in registry.all(ModelSpec) for kind in spec.model_types]
    return UnknownNameError("model type", name, known, f"Fix: {_install_fix(name, registry)}")


def _install_fix(name: str, registry: Registry) -> str:
    there = {plugin.source.distribution: plugin for plugin in registry.plugins}
    near = get_close_matches(name.lower(), PUBLISHED, n=1, cutoff=0.5)
    if not near:
        missing = sorted({*PUBLISHED.values()} - {*there})
        listed = f"pip install {' '.join(missing)}" if missing else "none that is not installed"
        return f"install a plugin that reads it; rlt's own model plugins: {listed}"
    distribution = PUBLISHED[near[0]]
    plugin = there.get(distribution)
    if plugin is None:
        return f"pip install {distribution}"
    if plugin.state != "ok":
        return f"{distribution} is {plugin.state}: {plugin.reason}"
    if not any(isinstance(spec, ModelSpec) for spec in plugin.specs):
        return f"{plugin.source} declares no model yet: pip install --upgrade {distribution}"
    return f"{plugin.source} reads {near[0]}: check model_type in {CONFIG}"
