"""The conformance kit: each planted fault fails the check that is for it, and no other."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rlt_core.contract import (
    Word,
    hookimpl,
)
from rlt_core.contract.specs import Spec
from rlt_core.plugins import core
from rlt_core.plugins.discovery import Candidate, core_candidate
from rlt_core.plugins.kinds import kind_of
from rlt_core.plugins.registry import build_registry
from rlt_core.testing.checks import config, plugin
from rlt_core.testing.checks.catalog import CHECKS
from rlt_core.testing.checks.kit import Kit
from rlt_core.testing.tiny import SPEC
from tests.plugin_kit import given

MODELS = {
    "NoCoda": "methods_exist",
    "NoWeights": "model_builds",
    "NarrowPrelude": "prelude_shape",
    "NarrowLoop": "loop_shape",
    "NarrowCoda": "coda_shape",
    "WideLogits": "head_shape",
    "ExtraSignal": "signals_declared",
    "AttendsTwice": "tracks_attended",
    "Counts": "results_repeat",
    "ChangesItsArgument": "arguments_untouched",
    "Promotes": "bfloat16_runs",
    "OverlappingWeights": "weights_apart",
    "UnreadWeight": "weights_all_read",
    "TiedToNothing": "weight_names",
    "CentersTheBatch": "rows_neighbours",
    "LooksAtTheCount": "rows_count",
    "LooksAtTheRowNumber": "rows_place",
    "LooksAtTheDeepest": "rows_depths",
    "ReadsBack": "nothing_read_back",
    "LoopsOverRows": "operator_count",
    "AlwaysStores": "coda_without_store",
    "SeedlessStart": "start_keyed",
    "DeafToOptions": "options_read",
    "FarCount": "prompt_chunks",
    "FarMemory": "requests_together",
    "NoDeeperLoops": "other_loops",
    "NoExitAtTwo": "early_exits",
    "GateOfTheCount": "own_policies",
}
READERS = {
    "read_nothing": "config_reads",
    "read_with_a_guess": "config_missing_field",
    "read_what_it_knows": "config_unknown_field",
    "read_by_force": "config_wrong_type",
}
LAYOUTS = {
    "ShortFill": "layout_tables",
    "NoFill": "layout_reads_written",
    "IdlePlane": "layout_planes_used",
    "ReadsAhead": "layout_tables",
    "OneListForAll": "layout_tokens",
}
POLICIES = {
    "TwoStates": "policy_state",
    "Numbers": "policy_answers",
    "InPlace": "policy_pure",
    "Toggles": "policy_repeats",
    "LooksAtTheHost": "policy_reads_nothing_back",
    "BatchMean": "policy_rows",
    "FewLeave": "policy_tokens",
}
ATTENTIONS = {
    "TooSharp": (frozenset(), "attention_reference"),
    "WritesTwice": (frozenset(), "attention_writes"),
    "Sdpa": (frozenset({Word.EXACT}), "attention_exact"),
    "OnePlane": (frozenset({Word.EXACT, Word.SPLIT_PLANES}), "attention_planes"),
    "Stores": (frozenset({Word.EXACT, Word.STORE_FALSE}), "attention_without_store"),
    "SeesHidden": (frozenset({Word.EXACT, Word.HIDDEN_KEYS}), "attention_hidden"),
}
OPERATORS = {
    "norm_with_eps_outside": ("rms_norm", "operator_reference"),
    "norm_in_place": ("rms_norm", "operator_pure"),
    "linear_in_any_order": ("linear", "operator_exact"),
}
_GATE = next(spec for spec in core.rlt_exit_policies() if spec.id == "gate")
_LAST_EXITED, _SHARED = core.rlt_kv_layouts()[:2]
_TORCH = core.rlt_attention_backends()[0]


def _faults() -> Iterator[tuple[str, Spec, str]]:
    """(name of the fault, the spec that has it, the check that must fail)."""
    for name, check in MODELS.items():
        yield name, replace(SPEC, factory=f"tests.broken_models:{name}"), check
    for name, check in READERS.items():
        yield name, replace(SPEC, reader=f"tests.broken_models:{name}"), check
    yield "needs a word", replace(SPEC, needs=frozenset({"no.word"})), "plan_resolves"
    provides = frozenset({Word.VARIABLE_DEPTH, Word.PROMPT_BY_DEPTH})
    for name, check in LAYOUTS.items():
        factory = f"tests.broken_parts:{name}"
        yield name, replace(_LAST_EXITED, id="x", factory=factory, provides=provides), check
    words = frozenset({Word.VARIABLE_DEPTH, Word.DEPTHS_APART})
    yield "promises too much", replace(_SHARED, id="x", provides=words), "layout_words"
    for name, check in POLICIES.items():
        yield name, replace(_GATE, id="x", factory=f"tests.broken_parts:{name}"), check
    deaf = (*_GATE.params, replace(_GATE.params[0], name="patience"))
    yield "deaf", replace(_GATE, id="x", params=deaf), "policy_parameters_used"
    refill, chunked = core.rlt_strategies()[0], core.rlt_prompt_modes()[0]
    for name, check in (("AdmitsTooMany", "strategy_plans"), ("AdmitsNobody", "strategy_serves")):
        yield name, replace(refill, id="x", factory=f"tests.broken_parts:{name}"), check
    for name, check in (("IgnoresTheBudget", "chunk_lengths"), ("NeverStarts", "prompts_served")):
        yield name, replace(chunked, id="x", factory=f"tests.broken_parts:{name}"), check
    for name, (op, check) in OPERATORS.items():
        right = next(spec for spec in core.rlt_ops() if spec.op == op)
        exact = check == "operator_exact"
        factory = f"tests.broken_parts:{name}"
        dtypes = ("float32",)
        yield name, replace(right, id="x", factory=factory, exact=exact, dtypes=dtypes), check
    for name, (kept, check) in ATTENTIONS.items():
        factory = f"tests.broken_parts:{name}"
        yield name, replace(_TORCH, id="x", factory=factory, provides=kept), check
    yield "no such name", replace(_SHARED, id="x", factory="rlt_core.kv:Nothing"), "factories_load"
    yield "a gate", replace(_SHARED, id="x", provides=frozenset({Word.GATE})), "words_kept"
    above = (replace(_GATE.params[0], default=2.0),)
    yield "above", replace(_GATE, id="x", params=above), "parameters_valid"


FAULTS = list(_faults())
# Many engines run before the fault shows.
SLOW = frozenset(
    (
        *("GateOfTheCount", "NoExitAtTwo", "NoDeeperLoops", "FarMemory", "FarCount"),
        *("DeafToOptions", "OverlappingWeights", "UnreadWeight", "TiedToNothing"),
        *("SeedlessStart", "LoopsOverRows", "AlwaysStores", "ReadsBack", "LooksAtTheDeepest"),
        *("SeesHidden", "Stores", "deaf", "OnePlane", "CentersTheBatch", "FewLeave", "a gate"),
        *("LooksAtTheCount", "NeverStarts", "AdmitsNobody", "InPlace", "WritesTwice"),
    )
)


def broken(spec: Spec, name: str = "broken") -> Candidate:
    """A plugin that declares this spec."""
    module = types.ModuleType(f"rlt_{name}")
    setattr(module, kind_of(spec).hook, hookimpl(lambda: [spec]))
    return given(name, lambda: module)


def kit_of(*candidates: Candidate, name: str = "broken", **options: Any) -> Kit:
    """The kit of one of these plugins, installed beside the core alone."""
    return Kit(name, registry=build_registry([core_candidate(), *candidates]), **options)


@pytest.fixture
def _no_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of a test is no module that a fresh interpreter could import; two tests below
    hold the checks that start one."""
    for file in (plugin, config):
        monkeypatch.setattr(file, "heavy_after", lambda *_: [])


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_no_interpreters")
@pytest.mark.parametrize(
    ("spec", "check"),
    [
        pytest.param(spec, check, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, spec, check in FAULTS
    ],
)
def test_a_fault_fails_its_check_and_no_other(spec: Spec, check: str) -> None:
    """Guards each check: one that no fault can fail, or that fails for another's, tells nothing."""
    outcomes = list(kit_of(broken(spec)).outcomes())
    failed = {outcome.check.name: outcome for outcome in outcomes if outcome.state == "failed"}
    for outcome in failed.values():
        print("\n".join(outcome.lines))
    assert set(failed) == {check}
    assert 2 <= len(failed[check].lines) <= 4
    assert failed[check].got


def test_every_check_has_a_fault() -> None:
    """Guards the table above against a check that was added without its fault."""
    named = {check for _, _, check in FAULTS}
    elsewhere = {"plugin_loads", "plugin_imports_light", "reader_imports_light"}
    assert named | elsewhere == {check.name for check in CHECKS}
