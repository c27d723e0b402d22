"""From what a user names to a checkpoint folder and its model; nothing of a checkpoint runs."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from rlt_core.contract import ModelShape, ModelSpec, Word
from rlt_core.contract.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    RltError,
    UnknownNameError,
)
from rlt_core.plugins.model_folder import find_checkpoint, find_model_folder
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from tests.plugin_kit import candidate, model, registry_of, shape

MODULE = "rlt_core_test_reader"


def read_shape(config: dict[str, object], path: str, ignore: frozenset[str]) -> ModelShape:
    """The reader of the models below."""
    return shape(loops=config["loops"], max_loops=config["loops"])


def read_nothing(config: dict[str, object], path: str, ignore: frozenset[str]) -> None:
    """A reader that forgot to return."""


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with a model whose reader is `read_shape`."""
    module = types.ModuleType(MODULE)
    vars(module).update(read_shape=read_shape, read_nothing=read_nothing)
    monkeypatch.setitem(sys.modules, MODULE, module)
    spec = model(
        "counter",
        Word.ROW_COMPACTION,
        reader=f"{MODULE}:read_shape",
        architectures=("CounterLM",),
    )
    return registry_of(candidate("counter", rlt_models=lambda: [spec]))


def _folder(path: Path, **config: object) -> str:
    path.mkdir(exist_ok=True)
    path.joinpath("config.json").write_text(json.dumps(config))
    return str(path)


def test_a_folder_is_read_by_its_model_type(counter: Registry, tmp_path: Path) -> None:
    """Guards the way from config.json to a shape; the plan holds the folder that was found."""
    path = _folder(tmp_path / "m", model_type="counter", loops=3)
    plan = resolve(Choice(model_path=path), counter)
    assert (plan.model.id, plan.shape.loops, plan.max_depth) == ("counter", 3, 3)
    assert (plan.choice.model_path, plan.choice.model) == (path, "counter")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["CounterLM"]},
        {"model_type": "counter", "architectures": ["PeftModelForCausalLM"]},
        {"model_type": "counter", "auto_map": {"AutoModelForCausalLM": "evil.Model"}},
    ],
)
def test_a_foreign_class_in_auto_map_is_not_looked_at(
    config: dict[str, object], counter: Registry, tmp_path: Path
) -> None:
    """CASES A27: merged fine-tunes name a class whose file is missing; no code is ever run."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran code of a checkpoint')")
    path = _folder(tmp_path, loops=4, **config)
    assert resolve(Choice(model_path=path), counter).model.id == "counter"


def _refusal(path: str | None, registry: Registry) -> RltError:
    with pytest.raises(RltError) as caught:
        resolve(Choice(model_path=path), registry)
    assert 1 <= len(str(caught.value).splitlines()) <= 4
    return caught.value


def test_folders_that_cannot_be_used(counter: Registry, tmp_path: Path) -> None:
    """Guards 'What bad input gets': each case has its own sentence and fix."""
    missing = _refusal(str(tmp_path / "nowhere"), counter)
    assert isinstance(missing, CheckpointError)
    assert "no such model folder" in str(missing)
    assert "hf download some/model" in str(_refusal("some/model", counter))
    assert "did you mean counter?" in str(_refusal("countr", counter))

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no config.json (it is empty)" in str(_refusal(str(empty), counter))
    (empty / "model.safetensors").write_bytes(b"")
    assert "it holds model.safetensors" in str(_refusal(str(empty), counter))
    file = _refusal(str(empty / "model.safetensors"), counter)
    assert "is a file, not a model folder" in str(file)

    for text, said in (("{", "cannot be read as JSON"), ("[]", "holds list, not an object")):
        (empty / "config.json").write_text(text)
        assert said in str(_refusal(str(empty), counter))
    (empty / "config.json").write_bytes(b"\xff\xfe{}")
    assert "cannot be read as JSON" in str(_refusal(str(empty), counter))


def test_a_config_that_names_no_model(counter: Registry, tmp_path: Path) -> None:
    """Guards a config.json without model_type, or with one of the wrong type."""
    nameless = _refusal(_folder(tmp_path, loops=4), counter)
    assert isinstance(nameless, ConfigError)
    assert nameless.field == "model_type"
    assert isinstance(_refusal(_folder(tmp_path, model_type=7), counter), ConfigError)


def test_two_models_in_one_config_are_contradictory(tmp_path: Path) -> None:
    """Guards against picking either of two models by accident."""
    models = [model("one", architectures=("OneLM",)), model("two", architectures=("TwoLM",))]
    registry = registry_of(candidate("both", rlt_models=lambda: models))
    error = _refusal(_folder(tmp_path, model_type="one", architectures=["TwoLM"]), registry)
    assert isinstance(error, ConfigError)


@pytest.mark.parametrize(
    ("model_type", "fix"),
    [
        ("huginn_raven", "pip install rlt-huginn"),
        ("nanbeige", "pip install rlt-nanbeige"),
        ("Ouro", "pip install rlt-ouro"),
        ("llama", "pip install rlt-huginn rlt-nanbeige rlt-ouro"),
    ],
)
def test_an_unknown_model_type_says_what_to_install(
    model_type: str, fix: str, counter: Registry, tmp_path: Path
) -> None:
    """Guards the command that helps, and the list of what is installed."""
    error = _refusal(_folder(tmp_path, model_type=model_type), counter)
    assert isinstance(error, UnknownNameError)
    assert error.known == ("counter",)
    assert fix in str(error)


def test_a_plugin_that_declares_nothing_yet_is_not_advised_again(tmp_path: Path) -> None:
    """Guards against `pip install rlt-huginn` for somebody who has it."""
    registry = registry_of(candidate("huginn", "0.1.0"))
    error = _refusal(_folder(tmp_path, model_type="huginn_raven"), registry)
    assert "rlt-huginn 0.1.0 declares no model yet" in str(error)


def test_the_core_alone_says_what_to_install() -> None:
    """Guards the first minute of a user who installed rlt-core only."""
    assert "pip install rlt-ouro" in str(_refusal(None, registry_of()))


def test_an_installed_model_s_id_means_its_demo(tmp_path: Path) -> None:
    """Guards `rlt run ouro`, and that a package is found without importing it."""
    registry = registry_of(
        candidate("counter", rlt_models=lambda: [model(demo="rlt_core/nowhere")]),
        candidate("plain", rlt_models=lambda: [model("plain")]),
    )
    with pytest.raises(PluginError) as caught:
        find_checkpoint("counter", None, registry)
    assert "rlt_core/nowhere" in caught.value.reason
    with pytest.raises(UnknownNameError) as no_demo:
        find_checkpoint("plain", None, registry)
    assert no_demo.value.known == ("counter",)


def test_no_name_means_the_demo_and_it_is_said() -> None:
    """Guards the embedded demo: `rlt run` without a model says which one it took."""
    plan = resolve(Choice())
    assert plan.model.id == "ouro"
    assert any("no model was named" in note for note in plan.notes)
    assert plan.choice.model_path == find_model_folder()
    assert Path(find_model_folder("ouro"), "config.json").is_file()


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (f"{MODULE}:read_nothing", "returned NoneType, not ModelShape"),
        (f"{MODULE}:read_shapes", "cannot be loaded"),
        ("rlt_counter_not_there:read", "No module named 'rlt_counter_not_there'"),
    ],
)
def test_a_reader_that_is_wrong_is_its_plugin_s_error(
    reader: str, said: str, counter: Registry, tmp_path: Path
) -> None:
    """Guards against a wrong type or name that shows up deep in the engine."""
    spec = replace(counter.get(ModelSpec, "counter"), reader=reader)
    registry = registry_of(candidate("counter", "2.0", rlt_models=lambda: [spec]))
    with pytest.raises(PluginError) as caught:
        resolve(Choice(model_path=_folder(tmp_path, model_type="counter", loops=4)), registry)
    assert caught.value.plugin == "rlt-counter 2.0"
    assert said in caught.value.reason
