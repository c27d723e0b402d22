"""Discovery: one broken plugin stops nobody, every spec keeps its source, two claims clash."""

from __future__ import annotations

import types
from importlib import metadata
from pathlib import Path

import pytest
import typer

from rlt_core.contract import (
    ExitPolicySpec,
    KVLayoutSpec,
    ModelSpec,
    OpSpec,
    StrategySpec,
    Word,
)
from rlt_core.contract.errors import DuplicateIdError, PluginError, UnknownNameError
from rlt_core.plugins.discovery import Candidate, blocked_names, installed
from rlt_core.plugins.registry import discover
from tests.plugin_kit import candidate, given, model, registry_of


def test_the_core_registers_its_own_parts_through_the_hooks() -> None:
    """Guards against built-ins on a side path, whose hooks nobody would notice breaking."""
    registry = registry_of()
    assert [spec.id for spec in registry.all(KVLayoutSpec)] == [
        "last_exited",
        "shared",
        "last_step",
    ]
    assert {spec.id for spec in registry.all(ExitPolicySpec)} >= {"fixed", "gate", "trace"}
    assert {spec.id for spec in registry.all(StrategySpec)} >= {"refill", "cohort"}
    assert registry.all(ModelSpec) == ()
    source = registry.source(registry.get(KVLayoutSpec, "shared"))
    assert (source.plugin, source.distribution) == ("core", "rlt-core")


def test_the_distributions_of_this_repository_are_found() -> None:
    """Guards the entry points: a wrong group or module name is silence, not an error."""
    found = {plugin.name: plugin for plugin in discover().plugins}
    assert set(found) >= {"core", "ouro", "nanbeige", "huginn", "kernels"}
    for name in ("ouro", "nanbeige", "huginn", "kernels"):
        assert found[name].state == "ok", found[name].reason
        assert found[name].source.version == metadata.version(f"rlt-{name}")
    assert discover().get(ModelSpec, "ouro").demo == "rlt_ouro/demo"


def test_a_plugin_that_fails_at_import_is_listed_and_stops_nobody() -> None:
    """Guards against load_setuptools_entrypoints' habit: one broken import, no rlt at all."""

    def explode() -> object:
        raise ModuleNotFoundError("No module named 'numpyy'")

    registry = registry_of(given("bad", explode), candidate("good", rlt_models=lambda: [model()]))
    states = {plugin.name: plugin.state for plugin in registry.plugins}
    assert states == {"core": "ok", "bad": "broken", "good": "ok"}
    assert registry.get(ModelSpec, "counter").id == "counter"
    assert "numpyy" in (registry.broken[0].reason or "")


def test_a_plugin_that_leaves_at_import_is_broken_too() -> None:
    """Guards against `except Exception` alone: sys.exit at import would end rlt silently."""

    def leave() -> object:
        raise SystemExit(3)

    assert registry_of(given("bad", leave)).broken[0].reason == "SystemExit: 3"


def test_a_broken_plugin_matters_when_it_is_asked_for() -> None:
    """Guards against "unknown model" for a model that is installed and broken."""
    bad = candidate("bad", "2.1", rlt_models=lambda: [model("mine")], rlt_kv_layouts=lambda: 7)
    registry = registry_of(bad)
    for name in ("mine", "bad", "rlt-bad"):
        with pytest.raises(PluginError) as caught:
            registry.get(ModelSpec, name)
        assert "rlt-bad 2.1" in caught.value.plugin
        assert "rlt_kv_layouts returned int" in caught.value.reason
    with pytest.raises(UnknownNameError) as unknown:
        registry.get(ModelSpec, "other")
    assert "rlt-bad 2.1" in (unknown.value.fix or "")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (7, "returned int, not a list of ModelSpec"),
        ("counter", "returned str, not a list of ModelSpec"),
        (["counter"], "a list with str, not ModelSpec"),
        (None, "returned NoneType"),
        ([model("a b")], "id 'a b' is not a name"),
        ([model(factory="rlt_counter.Model")], "not of the form package.module:Name"),
        ([model("counter", "gates")], "unknown word 'gates' (did you mean gate?)"),
        ([model(provides="gate")], "provides is str, not a set of words"),
        ([model(model_types=(), architectures=())], "name a checkpoint"),
        ([model(), model()], "declares 'counter' more than once"),
    ],
)
def test_a_wrong_return_value_is_the_plugin_s_error(returned: object, said: str) -> None:
    """Guards against a type error far from the plugin that caused it."""
    registry = registry_of(candidate("bad", rlt_models=lambda: returned))
    assert said in (registry.broken[0].reason or "")
    assert registry.all(ModelSpec) == ()


def test_a_coined_word_has_a_dot() -> None:
    """Guards the rule that third parties extend the vocabulary without touching the core."""
    registry = registry_of(candidate("good", rlt_models=lambda: [model("m", "good.word")]))
    assert registry.broken == ()


def test_an_unknown_hook_names_distribution_version_and_the_nearest_hook() -> None:
    """Guards against pluggy's silence on misspelt hooks (a model that is simply not there)."""
    registry = registry_of(candidate("typo", "3.2", rlt_model=lambda: [model()]))
    plugin = registry.broken[0]
    assert str(plugin.source) == "rlt-typo 3.2"
    assert "unknown hook rlt_model, did you mean rlt_models?" in (plugin.reason or "")


def test_a_hook_without_its_decorator_is_reported() -> None:
    """Guards against a forgotten @hookimpl: the function would never be called."""
    module = types.ModuleType("rlt_bare")
    exec("def rlt_models():\n    return []", module.__dict__)
    registry = registry_of(given("bare", lambda: module))
    assert "rlt_models lacks the @hookimpl decorator" in (registry.broken[0].reason or "")


def test_a_hook_with_an_argument_nobody_passes_is_reported() -> None:
    """Guards against a plugin that fails at registration taking the manager down with it."""
    registry = registry_of(candidate("bad", rlt_models=lambda app: []), candidate("good"))
    assert [plugin.name for plugin in registry.broken] == ["bad"]


@pytest.mark.parametrize(
    ("second", "kind", "name"),
    [
        (model("counter", model_types=("b",), architectures=()), "model", "counter"),
        (model("other", model_types=("counter",), architectures=()), "model type", "counter"),
        (
            model("other", model_types=("b",), architectures=("CounterForCausalLM",)),
            "architecture",
            "CounterForCausalLM",
        ),
    ],
)
def test_two_plugins_with_one_id_are_both_named(second: ModelSpec, kind: str, name: str) -> None:
    """Guards against the last one wins: which model runs would depend on install order."""
    registry = registry_of(
        candidate("counter", "0.1.0", rlt_models=lambda: [model()]),
        candidate("dup", "9", rlt_models=lambda: [second]),
    )
    with pytest.raises(DuplicateIdError) as caught:
        registry.check()
    error = caught.value
    assert (error.kind, error.name) == (kind, name)
    assert error.sources == ("rlt-counter 0.1.0", "rlt-dup 9")
    assert "RLT_BLOCK=counter or RLT_BLOCK=dup" in str(error)


def test_a_clash_with_the_core_offers_to_block_the_plugin_only() -> None:
    """Guards against the fix RLT_BLOCK=core, which cannot work."""
    layout = KVLayoutSpec(id="shared", summary="", factory="a:B", provides=frozenset())
    registry = registry_of(candidate("dup", rlt_kv_layouts=lambda: [layout]))
    assert str(registry.duplicates[0]).endswith("start with RLT_BLOCK=dup")


@pytest.mark.parametrize("name", ["dup", "rlt-dup"])
def test_blocking_one_of_two_settles_a_clash(name: str) -> None:
    """Guards the fix that the message promises."""
    first = candidate("counter", rlt_models=lambda: [model()])
    second = candidate("dup", rlt_models=lambda: [model()])
    registry = registry_of(first, second, blocked=frozenset({name}))
    registry.check()
    assert registry.source(registry.get(ModelSpec, "counter")).plugin == "counter"
    assert {plugin.name: plugin.state for plugin in registry.plugins}["dup"] == "blocked"


def test_blocking_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards RLT_BLOCK itself; a name that blocks nothing is reported, the core stays."""
    monkeypatch.setenv("RLT_BLOCK", "ouro, nothing,core")
    assert blocked_names() == {"ouro", "nothing", "core"}
    registry = discover()
    states = {plugin.name: plugin.state for plugin in registry.plugins}
    assert (states["ouro"], states["core"]) == ("blocked", "ok")
    assert registry.unknown_blocks == ("core", "nothing")
    with pytest.raises(UnknownNameError) as caught:
        registry.get(ModelSpec, "ouro")
    assert "blocked by RLT_BLOCK: ouro" in (caught.value.fix or "")


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    """Guards the message's fields: what was asked, what exists."""
    with pytest.raises(UnknownNameError) as caught:
        registry_of().get(KVLayoutSpec, "lastexited")
    assert caught.value.kind == "KV layout"
    assert caught.value.nearest[0] == "last_exited"
    assert caught.value.known == ("last_exited", "last_step", "shared")


def _op(name: str, priority: int = 0) -> OpSpec:
    return OpSpec(
        id=name,
        op="linear",
        factory="a:b",
        devices=("cpu",),
        dtypes=("float32",),
        exact=True,
        priority=priority,
    )


def _choose(candidates: list[OpSpec], *plugins: Candidate) -> OpSpec | None:
    registry = registry_of(*plugins)
    return registry.choose_op("linear", candidates, device="cpu", dtype="float32", exact=True)


def test_the_core_chooses_the_highest_priority_and_ties_by_id() -> None:
    """Guards against a choice that depends on the order of installation."""
    low, a, b = _op("z.low"), _op("a.high", 5), _op("b.high", 5)
    assert _choose([low, b, a]) == a
    assert _choose([]) is None


def test_a_plugin_s_choice_comes_before_the_core_s() -> None:
    """Guards `trylast` on the core's answer."""
    low, high = _op("a.low"), _op("b.high", 5)
    picks = candidate("pick", rlt_choose_op=lambda op, candidates: candidates[0])
    passes = candidate("pass", rlt_choose_op=lambda exact: None)
    assert _choose([low, high], picks) == low
    assert _choose([low, high], passes) == high


def test_a_choice_that_is_no_candidate_is_the_plugin_s_error() -> None:
    """Guards against running an operator that did not pass the checks."""
    wild = candidate("wild", rlt_choose_op=lambda: _op("wild.linear"))
    with pytest.raises(PluginError) as caught:
        _choose([_op("a.low")], wild)
    assert caught.value.plugin == "wild"


def test_commands_of_a_failing_plugin_stop_nobody() -> None:
    """Guards `rlt --help` against a plugin's rlt_add_commands."""

    def add(app: typer.Typer) -> None:
        app.command("mine")(lambda: None)

    def fail(app: typer.Typer) -> None:
        raise RuntimeError("no")

    app = typer.Typer()
    registry = registry_of(
        candidate("a", rlt_add_commands=fail), candidate("b", rlt_add_commands=add)
    )
    failures = registry.add_commands(app)
    assert [error.plugin for error in failures] == ["a"]
    assert [command.name for command in app.registered_commands] == ["mine"]


def test_entry_points_of_an_environment_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the whole way from a distribution on disk to specs, a broken one beside it and one
    installed while the process runs."""
    _distribution(tmp_path, "good", "from rlt_core.contract import hookimpl\n")
    _distribution(tmp_path, "broken", "import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {c.source.plugin: c.source for c in installed()}
    assert str(found["good"]) == "rlt-good 0.4"
    states = {plugin.name: plugin.state for plugin in discover().plugins}
    assert (states["good"], states["broken"]) == ("ok", "broken")
    _distribution(tmp_path, "late", "from rlt_core.contract import hookimpl\n")
    states = {plugin.name: plugin.state for plugin in discover().plugins}
    assert states.get("late") == "ok", "what was read before is taken for all there is"


def _distribution(folder: Path, name: str, source: str) -> None:
    (folder / f"rlt_{name}.py").write_text(source)
    about = folder / f"rlt_{name}-0.4.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rlt-{name}\nVersion: 0.4\n"
    )
    about.joinpath("entry_points.txt").write_text(f"[rlt]\n{name} = rlt_{name}\n")


def test_words_compare_with_their_plain_spelling() -> None:
    """Guards the sets of words: a plugin may write "gate" where the core writes Word.GATE."""
    assert {"gate"} <= frozenset({Word.GATE})
    assert ", ".join([Word.GATE]) == "gate"
