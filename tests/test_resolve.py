"""Resolution: every pair is checked by words before anything is built, and fixes are true."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from rlt_core.contract import (
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    PromptModeSpec,
    StrategySpec,
    Word,
)
from tests.plugin_kit import (
    ALL,
    attention,
    conflict_of,
    counter_registry,
    resolve_counter,
    shape,
)


def test_the_defaults_are_picked_and_said() -> None:
    """Guards against a value the system slips in: each is in the notes."""
    plan = resolve_counter(shape=shape(exit_policy="gate"))
    assert (plan.layout.id, plan.strategy.id, plan.prompts.id) == (
        "last_exited",
        "refill",
        "chunked",
    )
    assert (plan.policy.id, plan.attention.id, plan.dtype) == ("gate", "torch", "float32")
    assert plan.max_depth == 4
    assert set(plan.ops) == {
        "embed",
        "linear",
        "rms_norm",
        "add_rms_norm",
        "norm_add_norm",
        "add_norm",
        "silu_mul",
        "linear_silu_mul",
    }
    said = "\n".join(plan.notes)
    for picked in ("last_exited", "refill", "chunked", "gate", "float32", "torch"):
        assert picked in said


def test_what_was_asked_for_is_no_note() -> None:
    """Guards the notes against noise: they list only what the system picked."""
    plan = resolve_counter(
        kv_layout="shared",
        strategy="cohort",
        prompts="chunked",
        exit_policy="fixed",
        attention="torch",
        dtype="bfloat16",
    )
    assert plan.notes == ()
    assert (plan.layout.id, plan.strategy.id, plan.dtype) == ("shared", "cohort", "bfloat16")


def test_a_policy_needs_its_signal_of_the_model() -> None:
    """CASES A7: a gate asked of a model without one is refused, not silently full depth."""
    registry = counter_registry(Word.ROW_COMPACTION, Word.STATE)
    error = conflict_of(registry, exit_policy="gate")
    (conflict,) = error.conflicts
    assert conflict.left.startswith("exit policy 'gate' (rlt-core ")
    assert conflict.right == "model 'counter' (rlt-counter 1.0)"
    assert "needs gate" in conflict.reason
    assert error.fixes == tuple(f"--exit-policy {other}" for other in ("fixed", "latent", "cosine"))


@pytest.mark.parametrize(
    ("policy", "signal"),
    [
        *(("latent", "state"), ("cosine", "state"), ("entropy", "logits")),
        *(("kl", "logits"), ("minp_kl", "logits"), ("argmax", "logits")),
    ],
)
def test_policies_need_the_signal_they_compare(policy: str, signal: str) -> None:
    """A7: a model that does not show what a policy reads is refused, and every fix passes."""
    registry = counter_registry(*(word for word in ALL if word != signal))
    error = conflict_of(registry, exit_policy=policy)
    (conflict,) = error.conflicts
    assert conflict.left.startswith(f"exit policy '{policy}' (rlt-core ")
    assert conflict.right == "model 'counter' (rlt-counter 1.0)"
    assert f"needs {signal};" in conflict.reason
    assert error.fixes
    for fix in error.fixes:
        assert fix.startswith("--exit-policy ")
        resolve_counter(registry, exit_policy=fix.removeprefix("--exit-policy "))


def test_a_threshold_of_the_checkpoint_is_its_own_policy_s() -> None:
    """Ouro's gate threshold of 1 under another policy's parameter of the same name left every
    token at its first loop, or argmax at its second."""
    own = shape(exit_policy="gate", exit_defaults={"exit_threshold": 1.0})
    assert resolve_counter(shape=own).exit_defaults == {"exit_threshold": 1.0}
    for policy in ("latent", "kl", "argmax", "fixed"):
        assert resolve_counter(shape=own, exit_policy=policy).exit_defaults == {}


def test_the_checkpoint_s_own_policy_falls_back_to_fixed_and_it_is_said() -> None:
    """Guards against a default that refuses a model nobody asked an exit of."""
    plan = resolve_counter(counter_registry(Word.ROW_COMPACTION), shape=shape(exit_policy="gate"))
    assert plan.policy.id == "fixed"
    assert any("gate" in note and "fixed" in note for note in plan.notes)


def test_mode_full_needs_the_kv_of_every_depth() -> None:
    """Guards against full on a layout whose deeper planes are approximations."""
    for layout in ("shared", "last_step"):
        error = conflict_of(kv_layout=layout, exit_mode="full")
        assert error.conflicts[0].left == "exit mode 'full'"
        assert f"'{layout}'" in error.conflicts[0].right
        assert error.fixes == ("--exit-mode skip", "--kv-layout last_exited")
    assert resolve_counter(kv_layout="last_exited", exit_mode="full").exit_mode == "full"


@pytest.mark.parametrize("layout", ["last_exited", "shared", "last_step"])
@pytest.mark.parametrize("policy", ["fixed", "gate", "trace"])
@pytest.mark.parametrize("strategy", ["refill", "cohort"])
def test_everything_composes_in_skip(layout: str, policy: str, strategy: str) -> None:
    """Guards the promise that every core part works with every other."""
    plan = resolve_counter(kv_layout=layout, exit_policy=policy, strategy=strategy)
    assert (plan.layout.id, plan.policy.id, plan.strategy.id) == (layout, policy, strategy)


def _wavefront() -> list[PromptModeSpec]:
    needs = frozenset({Word.PROMPT_BY_DEPTH})
    return [PromptModeSpec(id="waves", summary="", factory="a:B", needs=needs)]


def _pipeline() -> list[StrategySpec]:
    needs = frozenset({Word.DEPTHS_APART, Word.STORE_FALSE})
    return [
        StrategySpec(id="guesses", summary="", factory="a:B", entry=Entry.ON_GUESS, needs=needs)
    ]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"prompts": "waves"}, {"shared"}),
        ({"strategy": "guesses"}, {"shared", "last_step"}),
    ],
)
def test_a_mode_of_another_plugin_is_refused_by_words(
    options: dict[str, str], refused: set[str]
) -> None:
    """Guards against rules by id: a wavefront under another name meets the same layouts."""
    registry = counter_registry(*ALL, rlt_prompt_modes=_wavefront, rlt_strategies=_pipeline)
    for layout in ("last_exited", "shared", "last_step"):
        if layout in refused:
            error = conflict_of(registry, kv_layout=layout, **options)
            assert f"'{layout}'" in error.conflicts[0].right
        else:
            resolve_counter(registry, kv_layout=layout, **options)


def test_strategies_need_rows_that_may_move() -> None:
    """Guards against a model with batch effects under continuous batching; no fix is invented."""
    error = conflict_of(counter_registry(Word.GATE))
    assert "needs row_compaction" in error.conflicts[0].reason
    assert error.fixes == ()
    assert "no installed combination" in str(error)


def test_a_coined_word_takes_part() -> None:
    """Guards the rule that a plugin's own words are checked like the core's."""
    policy = ExitPolicySpec(
        id="mine", summary="", factory="a:B", needs=frozenset({"counter.parity"})
    )
    lacking = counter_registry(*ALL, rlt_exit_policies=lambda: [policy])
    assert "counter.parity" in conflict_of(lacking, exit_policy="mine").conflicts[0].reason
    resolve_counter(
        counter_registry(*ALL, "counter.parity", rlt_exit_policies=lambda: [policy]),
        exit_policy="mine",
    )


def test_a_part_may_refuse_a_word() -> None:
    """Guards `refuses`, for what no promise can express."""
    layout = KVLayoutSpec(
        id="mine",
        summary="",
        factory="a:B",
        provides=frozenset({Word.VARIABLE_DEPTH}),
        refuses=frozenset({Word.GATE}),
    )
    error = conflict_of(counter_registry(*ALL, rlt_kv_layouts=lambda: [layout]), kv_layout="mine")
    assert "refuses gate" in error.conflicts[0].reason


def test_logits_of_a_model_with_coda_layers_need_attention_that_can_peek() -> None:
    """Guards against a policy whose look at the logits would write coda KV."""
    policy = ExitPolicySpec(id="look", summary="", factory="a:B", needs=frozenset({Word.LOGITS}))
    writes = attention("writes", provides=frozenset({Word.EXACT, Word.SPLIT_PLANES}))
    registry = counter_registry(
        *ALL, rlt_exit_policies=lambda: [policy], rlt_attention_backends=lambda: [writes]
    )
    options = {"exit_policy": "look", "attention": "writes"}
    error = conflict_of(registry, shape=shape(has_coda_layers=True), **options)
    assert "--attention torch" in error.fixes
    resolve_counter(registry, **options)


def test_all_conflicts_come_at_once() -> None:
    """Guards against one error per attempt."""
    registry = counter_registry(Word.ROW_COMPACTION)
    error = conflict_of(
        registry, exit_policy="gate", exit_mode="full", kv_layout="shared", dtype="float16"
    )
    assert len(error.conflicts) == 3
    assert all(fix.count("--") >= 3 for fix in error.fixes)
    assert error.fixes


def _flags(fix: str) -> Iterator[tuple[str, Any]]:
    words = fix.split()
    for flag, value in itertools.zip_longest(words[::2], words[1::2]):
        name = flag.removeprefix("--").replace("-", "_")
        if name == "exact":
            yield name, value != "off"
        else:
            yield name, int(value) if value.isdigit() else value


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((Word.ROW_COMPACTION,), {"exit_policy": "gate"}),
        ((Word.ROW_COMPACTION,), {"exit_policy": "gate", "kv_layout": "shared", "page_size": 24}),
        (ALL, {"exit_mode": "full", "kv_layout": "shared"}),
        (ALL, {"exit_mode": "full", "kv_layout": "last_step", "dtype": "float16"}),
        (ALL, {"max_depth": 9, "page_size": 3}),
        (ALL, {"prompts": "waves", "kv_layout": "shared"}),
        (ALL, {"strategy": "guesses", "kv_layout": "last_step", "page_size": 5}),
    ],
)
def test_every_fix_that_is_printed_works(words: tuple[str, ...], options: dict[str, Any]) -> None:
    """Guards against a fix for one rule that breaks another (STYLE's first prototype)."""
    registry = counter_registry(*words, rlt_prompt_modes=_wavefront, rlt_strategies=_pipeline)
    error = conflict_of(registry, **options)
    assert error.fixes
    for fix in error.fixes:
        resolve_counter(registry, **{**options, **dict(_flags(fix))})


def test_a_fix_never_breaks_a_second_rule() -> None:
    """Guards STYLE's own example: `latent` mends the signal and then breaks the layout; so does
    one of another plugin."""
    drift = ExitPolicySpec(
        id="drift", summary="", factory="a:B", needs=frozenset({Word.STATE, Word.VARIABLE_DEPTH})
    )
    flat = KVLayoutSpec(id="flat", summary="", factory="a:B", provides=frozenset())
    registry = counter_registry(
        Word.ROW_COMPACTION,
        Word.STATE,
        rlt_exit_policies=lambda: [drift],
        rlt_kv_layouts=lambda: [flat],
    )
    error = conflict_of(registry, exit_policy="gate", kv_layout="flat")
    assert error.fixes == ("--exit-policy fixed",)


def test_a_policy_that_wants_data_with_every_request_is_no_fix() -> None:
    """Guards against `--exit-policy trace` as advice: it would fail at the first request."""
    error = conflict_of(counter_registry(Word.ROW_COMPACTION), exit_policy="gate")
    assert "--exit-policy trace" not in error.fixes
