"""Resolution: limits of backends, operators, devices, dtypes and sizes, before any is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlt_core.contract import OpSpec, TrackSpec, Word
from rlt_core.contract.errors import OptionError, PluginError, RltError, UnknownNameError
from rlt_core.plugins.resolve import resolve
from tests.plugin_kit import (
    ALL,
    CHOICE,
    attention,
    candidate,
    conflict_of,
    counter_registry,
    model,
    registry_of,
    resolve_counter,
    shape,
)


@pytest.mark.parametrize("size", [3, 24, 256])
def test_a_page_size_that_cannot_work_names_the_allowed_ones(size: int) -> None:
    """CASES A100: the block size is checked at start-up, not by a kernel."""
    error = conflict_of(page_size=size)
    assert "1, 2, 4, 8, 16, 32, 64, 128" in str(error)
    assert error.fixes == ("--page-size 16",)


@pytest.mark.parametrize(
    ("limits", "options", "said"),
    [
        ({"page_sizes": (64, 128)}, {"page_size": 16}, "it allows 64, 128"),
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
    registry = counter_registry(*ALL, rlt_attention_backends=lambda: [attention("fast", **limits)])
    error = conflict_of(registry, attention="fast", **options)
    assert said in str(error)
    assert "--attention torch" in error.fixes
    # Not asked for, the next candidate is taken, and it is said.
    plan = resolve_counter(registry, **options)
    assert plan.attention.id == "torch"
    assert any("fast does not fit" in note and said in note for note in plan.notes)


def test_a_page_size_left_open_is_one_that_the_backend_asked_for_takes() -> None:
    """A refusal of a default that nobody chose; the nearest size is taken, and it is said."""
    hooks = {
        "rlt_attention_backends": lambda: [attention("fast", page_sizes=(64, 256), priority=-1)]
    }
    registry = counter_registry(*ALL, **hooks)
    plan = resolve_counter(registry, attention="fast")
    assert plan.choice.kv_page_size == 64
    assert "page size 64: what attention fast allows" in plan.notes
    assert resolve_counter(registry, attention="fast", page_size=256).choice.kv_page_size == 256
    assert resolve_counter(registry).choice.kv_page_size == 16
    # A page of several chunks is for those alone that name it.
    error = conflict_of(registry, attention="torch", page_size=256)
    assert error.conflicts[0].right == "option --page-size 256"
    assert "--attention fast" in error.fixes


def test_the_head_size_of_every_track_is_checked() -> None:
    """CASES A100: a boundary track may have a head size of its own."""
    tracks = tuple(
        TrackSpec(name=name, num_layers=1, num_kv_heads=1, head_dim=dim, per_depth=name == "core")
        for name, dim in (("prelude", 96), ("core", 64))
    )
    registry = counter_registry(
        *ALL, rlt_attention_backends=lambda: [attention("f", head_dims=(64,))]
    )
    error = conflict_of(registry, attention="f", shape=shape(tracks=tracks))
    assert error.conflicts[0].right == "head size 96"


def test_the_highest_priority_that_fits_is_taken() -> None:
    """Guards the pick among backends."""
    registry = counter_registry(*ALL, rlt_attention_backends=lambda: [attention("fast")])
    assert resolve_counter(registry).attention.id == "fast"


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
    registry = counter_registry(*ALL, rlt_ops=lambda: ops)
    assert resolve_counter(registry).ops["linear"].id == "mine.exact"
    assert resolve_counter(registry, exact=False).ops["linear"].id == "mine.fast"
    assert resolve_counter(registry, dtype="bfloat16").ops["linear"].id == "torch.linear"
    assert (
        resolve_counter(registry, ops={"linear": "torch.linear"}).ops["linear"].id == "torch.linear"
    )


def test_an_operator_asked_for_must_fit() -> None:
    """Guards `--op` against slipping past the limits; every way out is offered."""
    registry = counter_registry(*ALL, rlt_ops=lambda: [_op("mine.fast", exact=False)])
    error = conflict_of(registry, ops={"linear": "mine.fast"})
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
        resolve_counter(**options)
    assert caught.value.exit_code == 2
    assert 1 <= len(str(caught.value).splitlines()) <= 4


def test_float16_is_refused_once_and_says_what_to_use() -> None:
    """CASES A29: float16 overflows; it is refused, not computed into NaN."""
    error = conflict_of(dtype="float16")
    assert len(error.conflicts) == 1
    assert error.fixes == ("--dtype bfloat16", "--dtype float32")
    of_checkpoint = conflict_of(shape=shape(dtype="float16"))
    assert of_checkpoint.conflicts[0].left == "checkpoint dtype float16"
    resolve_counter(shape=shape(dtype="float16"), dtype="bfloat16")


def test_graphs_need_cuda_and_a_model_that_reads_nothing_back() -> None:
    """Guards against graphs on a CPU, and against capturing a host decision."""
    assert conflict_of(graphs=True).fixes == ("--no-graphs",)
    assert resolve_counter(graphs=True, device="cuda:1", exact=False).graphs
    assert resolve_counter(device="cuda:1", exact=False).graphs
    assert not resolve_counter(graphs=False, device="cuda:1", exact=False).graphs
    assert not resolve_counter().graphs
    blind = counter_registry(Word.ROW_COMPACTION)
    error = conflict_of(blind, graphs=True, device="cuda", exact=False)
    assert "graph_safe" in error.conflicts[0].reason


@pytest.mark.parametrize(("asked", "works"), [(4, True), (3, False), (5, False)])
def test_a_model_with_fixed_loops_takes_no_other_depth(asked: int, works: bool) -> None:
    """CASES A6: loops are the checkpoint's unless the model says otherwise."""
    if works:
        assert resolve_counter(max_depth=asked).max_depth == asked
    else:
        assert conflict_of(max_depth=asked).fixes == ("--max-depth 4",)


def test_a_model_may_allow_other_depths_up_to_its_own_limit() -> None:
    """Guards Huginn's case: 32 loops by default, more on request, a limit all the same."""
    registry = counter_registry(*ALL, Word.LOOPS_OVERRIDE)
    assert resolve_counter(registry, max_depth=64, shape=shape(max_loops=64)).max_depth == 64
    error = conflict_of(registry, max_depth=65, shape=shape(max_loops=64))
    assert "at most 64 loops" in error.conflicts[0].reason


def test_two_plugins_with_one_id_stop_resolution() -> None:
    """Guards against resolving with whichever came first."""
    registry = registry_of(
        candidate("counter", rlt_models=lambda: [model()]),
        candidate("dup", rlt_models=lambda: [model()]),
    )
    with pytest.raises(PluginError):
        resolve(CHOICE, registry, shape=shape())
