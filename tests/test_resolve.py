"""Resolution: every pair is checked by words before anything is built, and fixes are true."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rlt_core.contract import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    OpSpec,
    PromptModeSpec,
    StrategySpec,
    TrackSpec,
    Word,
)
from rlt_core.contract.errors import (
    ConflictError,
    OptionError,
    PluginError,
    RltError,
    UnknownNameError,
)
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from tests.plugin_kit import candidate, model, registry_of, shape

ALL = (Word.GATE, Word.STATE, Word.LOGITS, Word.ROW_COMPACTION, Word.GRAPH_SAFE)
CHOICE = Choice(model="counter")


def _registry(*words: str, **hooks: Any) -> Registry:
    return registry_of(candidate("counter", rlt_models=lambda: [model("counter", *words)], **hooks))


def _resolve(registry: Registry | None = None, **options: Any) -> Plan:
    wanted = options.pop("shape", shape())
    return resolve(replace(CHOICE, **options), registry or _registry(*ALL), shape=wanted)


def _conflict(registry: Registry | None = None, **options: Any) -> ConflictError:
    with pytest.raises(ConflictError) as caught:
        _resolve(registry, **options)
    return caught.value


def test_the_defaults_are_picked_and_said() -> None:
    """Guards against a value the system slips in: each is in the notes."""
    plan = _resolve(shape=shape(exit_policy="gate"))
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
    }
    said = "\n".join(plan.notes)
    for picked in ("last_exited", "refill", "chunked", "gate", "float32", "torch"):
        assert picked in said


def test_what_was_asked_for_is_no_note() -> None:
    """Guards the notes against noise: they list only what the system picked."""
    plan = _resolve(
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
    registry = _registry(Word.ROW_COMPACTION, Word.STATE)
    error = _conflict(registry, exit_policy="gate")
    (conflict,) = error.conflicts
    assert conflict.left.startswith("exit policy 'gate' (rlt-core ")
    assert conflict.right == "model 'counter' (rlt-counter 1.0)"
    assert "needs gate" in conflict.reason
    assert error.fixes == ("--exit-policy fixed",)


def test_the_checkpoint_s_own_policy_falls_back_to_fixed_and_it_is_said() -> None:
    """Guards against a default that refuses a model nobody asked an exit of."""
    plan = _resolve(_registry(Word.ROW_COMPACTION), shape=shape(exit_policy="gate"))
    assert plan.policy.id == "fixed"
    assert any("gate" in note and "fixed" in note for note in plan.notes)


def test_mode_full_needs_the_kv_of_every_depth() -> None:
    """Guards against full on a layout whose deeper planes are approximations."""
    for layout in ("shared", "last_step"):
        error = _conflict(kv_layout=layout, exit_mode="full")
        assert error.conflicts[0].left == "exit mode 'full'"
        assert f"'{layout}'" in error.conflicts[0].right
        assert error.fixes == ("--exit-mode skip", "--kv-layout last_exited")
    assert _resolve(kv_layout="last_exited", exit_mode="full").exit_mode == "full"


@pytest.mark.parametrize("layout", ["last_exited", "shared", "last_step"])
@pytest.mark.parametrize("policy", ["fixed", "gate", "trace"])
@pytest.mark.parametrize("strategy", ["refill", "cohort"])
def test_everything_composes_in_skip(layout: str, policy: str, strategy: str) -> None:
    """Guards the promise that every core part works with every other."""
    plan = _resolve(kv_layout=layout, exit_policy=policy, strategy=strategy)
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
    registry = _registry(*ALL, rlt_prompt_modes=_wavefront, rlt_strategies=_pipeline)
    for layout in ("last_exited", "shared", "last_step"):
        if layout in refused:
            error = _conflict(registry, kv_layout=layout, **options)
            assert f"'{layout}'" in error.conflicts[0].right
        else:
            _resolve(registry, kv_layout=layout, **options)


def test_strategies_need_rows_that_may_move() -> None:
    """Guards against a model with batch effects under continuous batching; no fix is invented."""
    error = _conflict(_registry(Word.GATE))
    assert "needs row_compaction" in error.conflicts[0].reason
    assert error.fixes == ()
    assert "no installed combination" in str(error)


def test_a_coined_word_takes_part() -> None:
    """Guards the rule that a plugin's own words are checked like the core's."""
    policy = ExitPolicySpec(
        id="mine", summary="", factory="a:B", needs=frozenset({"counter.parity"})
    )
    lacking = _registry(*ALL, rlt_exit_policies=lambda: [policy])
    assert "counter.parity" in _conflict(lacking, exit_policy="mine").conflicts[0].reason
    _resolve(
        _registry(*ALL, "counter.parity", rlt_exit_policies=lambda: [policy]), exit_policy="mine"
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
    error = _conflict(_registry(*ALL, rlt_kv_layouts=lambda: [layout]), kv_layout="mine")
    assert "refuses gate" in error.conflicts[0].reason


def test_logits_of_a_model_with_coda_layers_need_attention_that_can_peek() -> None:
    """Guards against a policy whose look at the logits would write coda KV."""
    policy = ExitPolicySpec(id="look", summary="", factory="a:B", needs=frozenset({Word.LOGITS}))
    writes = _attention("writes", provides=frozenset({Word.EXACT, Word.SPLIT_PLANES}))
    registry = _registry(
        *ALL, rlt_exit_policies=lambda: [policy], rlt_attention_backends=lambda: [writes]
    )
    options = {"exit_policy": "look", "attention": "writes"}
    error = _conflict(registry, shape=shape(has_coda_layers=True), **options)
    assert "--attention torch" in error.fixes
    _resolve(registry, **options)


def test_all_conflicts_come_at_once() -> None:
    """Guards against one error per attempt."""
    registry = _registry(Word.ROW_COMPACTION)
    error = _conflict(
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
    registry = _registry(*words, rlt_prompt_modes=_wavefront, rlt_strategies=_pipeline)
    error = _conflict(registry, **options)
    assert error.fixes
    for fix in error.fixes:
        _resolve(registry, **{**options, **dict(_flags(fix))})


def test_a_fix_never_breaks_a_second_rule() -> None:
    """Guards STYLE's own example: `latent` mends the signal and then breaks the layout."""
    latent = ExitPolicySpec(
        id="latent", summary="", factory="a:B", needs=frozenset({Word.STATE, Word.VARIABLE_DEPTH})
    )
    flat = KVLayoutSpec(id="flat", summary="", factory="a:B", provides=frozenset())
    registry = _registry(
        Word.ROW_COMPACTION,
        Word.STATE,
        rlt_exit_policies=lambda: [latent],
        rlt_kv_layouts=lambda: [flat],
    )
    error = _conflict(registry, exit_policy="gate", kv_layout="flat")
    assert error.fixes == ("--exit-policy fixed",)


def test_a_policy_that_wants_data_with_every_request_is_no_fix() -> None:
    """Guards against `--exit-policy trace` as advice: it would fail at the first request."""
    error = _conflict(_registry(Word.ROW_COMPACTION), exit_policy="gate")
    assert "--exit-policy trace" not in error.fixes


@pytest.mark.parametrize("size", [3, 24, 256])
def test_a_page_size_that_cannot_work_names_the_allowed_ones(size: int) -> None:
    """CASES A100: the block size is checked at start-up, not by a kernel."""
    error = _conflict(page_size=size)
    assert "1, 2, 4, 8, 16, 32, 64, 128" in str(error)
    assert error.fixes == ("--page-size 16",)


def _attention(name: str, **fields: Any) -> AttentionSpec:
    plain = AttentionSpec(
        id=name,
        summary="",
        factory="a:B",
        devices=("cpu", "cuda"),
        dtypes=("float32", "bfloat16"),
        priority=10,
        provides=frozenset({Word.EXACT, Word.SPLIT_PLANES, Word.STORE_FALSE}),
    )
    return replace(plain, **fields)


@pytest.mark.parametrize(
    ("limits", "options", "said"),
    [
        ({"page_sizes": (64, 128)}, {}, "it allows 64, 128"),
        ({"head_dims": (64, 128)}, {}, "it allows head sizes 64, 128"),
        ({"devices": ("cuda",)}, {}, "it runs on cuda"),
        ({"dtypes": ("bfloat16",)}, {}, "it computes in bfloat16"),
        ({"provides": frozenset({Word.SPLIT_PLANES})}, {}, "its bits may change"),
    ],
)
def test_attention_limits_are_checked_at_start(
    limits: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    """CASES A100: head size, page size, device, dtype and exactness, before anything is built."""
    registry = _registry(*ALL, rlt_attention_backends=lambda: [_attention("fast", **limits)])
    error = _conflict(registry, attention="fast", **options)
    assert said in str(error)
    assert "--attention torch" in error.fixes
    # Not asked for, the next candidate is taken, and it is said.
    plan = _resolve(registry, **options)
    assert plan.attention.id == "torch"
    assert any("fast does not fit" in note and said in note for note in plan.notes)


def test_the_head_size_of_every_track_is_checked() -> None:
    """CASES A100: a boundary track may have a head size of its own."""
    tracks = tuple(
        TrackSpec(name=name, num_layers=1, num_kv_heads=1, head_dim=dim, per_depth=name == "core")
        for name, dim in (("prelude", 96), ("core", 64))
    )
    registry = _registry(*ALL, rlt_attention_backends=lambda: [_attention("f", head_dims=(64,))])
    error = _conflict(registry, attention="f", shape=shape(tracks=tracks))
    assert error.conflicts[0].right == "head size 96"


def test_the_highest_priority_that_fits_is_taken() -> None:
    """Guards the pick among backends."""
    registry = _registry(*ALL, rlt_attention_backends=lambda: [_attention("fast")])
    assert _resolve(registry).attention.id == "fast"


def _op(name: str, **fields: Any) -> OpSpec:
    plain = OpSpec(
        id=name,
        op="linear",
        factory="a:b",
        devices=("cpu",),
        dtypes=("float32",),
        exact=True,
        priority=5,
    )
    return replace(plain, **fields)


def test_operators_are_chosen_among_those_that_fit() -> None:
    """Guards against an operator that is not exact, or of another dtype, winning by priority."""
    ops = [_op("mine.fast", exact=False, priority=9), _op("mine.exact")]
    registry = _registry(*ALL, rlt_ops=lambda: ops)
    assert _resolve(registry).ops["linear"].id == "mine.exact"
    assert _resolve(registry, exact=False).ops["linear"].id == "mine.fast"
    assert _resolve(registry, dtype="bfloat16").ops["linear"].id == "torch.linear"
    assert _resolve(registry, ops={"linear": "torch.linear"}).ops["linear"].id == "torch.linear"


def test_an_operator_asked_for_must_fit() -> None:
    """Guards `--op` against slipping past the limits; every way out is offered."""
    registry = _registry(*ALL, rlt_ops=lambda: [_op("mine.fast", exact=False)])
    error = _conflict(registry, ops={"linear": "mine.fast"})
    assert "operator 'mine.fast'" in error.conflicts[0].left
    assert "--exact off" in error.fixes


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"ops": {"linear": "torch.embed"}}, OptionError),
        ({"ops": {"liner": "torch.linear"}}, UnknownNameError),
        ({"ops": {"linear": "torch.liner"}}, UnknownNameError),
        ({"page_size": 0}, OptionError),
        ({"page_size": True}, OptionError),
        ({"max_depth": 0}, OptionError),
        ({"max_depth": -1}, OptionError),
        ({"max_depth": 2.5}, OptionError),
        ({"device": "gpu"}, OptionError),
        ({"device": "cuda:"}, OptionError),
        ({"dtype": "float23"}, UnknownNameError),
        ({"exit_mode": "half"}, UnknownNameError),
        ({"role": "prefill"}, OptionError),
        ({"kv_layout": "lastexited"}, UnknownNameError),
        ({"exit_policy": "gates"}, UnknownNameError),
        ({"strategy": "fill"}, UnknownNameError),
        ({"prompts": "chunky"}, UnknownNameError),
        ({"attention": "torches"}, UnknownNameError),
        ({"model": "countess"}, UnknownNameError),
    ],
)
def test_a_value_that_is_wrong_by_itself(options: dict[str, Any], kind: type[RltError]) -> None:
    """Guards every option: one to four lines, exit code 2, nothing half done."""
    with pytest.raises(kind) as caught:
        _resolve(**options)
    assert caught.value.exit_code == 2
    assert 1 <= len(str(caught.value).splitlines()) <= 4


def test_float16_is_refused_once_and_says_what_to_use() -> None:
    """CASES A29: float16 overflows; it is refused, not computed into NaN."""
    error = _conflict(dtype="float16")
    assert len(error.conflicts) == 1
    assert error.fixes == ("--dtype bfloat16", "--dtype float32")
    of_checkpoint = _conflict(shape=shape(dtype="float16"))
    assert of_checkpoint.conflicts[0].left == "checkpoint dtype float16"
    _resolve(shape=shape(dtype="float16"), dtype="bfloat16")


def test_graphs_need_cuda_and_a_model_that_reads_nothing_back() -> None:
    """Guards against graphs on a CPU, and against capturing a host decision."""
    assert _conflict(graphs=True).fixes == ("--no-graphs",)
    assert _resolve(graphs=True, device="cuda:1").choice.graphs
    error = _conflict(_registry(Word.ROW_COMPACTION), graphs=True, device="cuda")
    assert "graph_safe" in error.conflicts[0].reason


@pytest.mark.parametrize(("asked", "works"), [(4, True), (3, False), (5, False)])
def test_a_model_with_fixed_loops_takes_no_other_depth(asked: int, works: bool) -> None:
    """CASES A6: loops are the checkpoint's unless the model says otherwise."""
    if works:
        assert _resolve(max_depth=asked).max_depth == asked
    else:
        assert _conflict(max_depth=asked).fixes == ("--max-depth 4",)


def test_a_model_may_allow_other_depths_up_to_its_own_limit() -> None:
    """Guards Huginn's case: 32 loops by default, more on request, a limit all the same."""
    registry = _registry(*ALL, Word.LOOPS_OVERRIDE)
    assert _resolve(registry, max_depth=64, shape=shape(max_loops=64)).max_depth == 64
    error = _conflict(registry, max_depth=65, shape=shape(max_loops=64))
    assert "at most 64 loops" in error.conflicts[0].reason


def test_two_plugins_with_one_id_stop_resolution() -> None:
    """Guards against resolving with whichever came first."""
    registry = registry_of(
        candidate("counter", rlt_models=lambda: [model()]),
        candidate("dup", rlt_models=lambda: [model()]),
    )
    with pytest.raises(PluginError):
        resolve(CHOICE, registry, shape=shape())
