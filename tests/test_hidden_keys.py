"""Layouts that hide missing keys: a hidden key is as if absent, and nothing pays for it unused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docs.examples.rlt_no_fill import NoFill, rlt_kv_layouts
from rlt_core.contract import KVLayoutSpec, LayoutTables, ModelShape, TrackSpec, Word
from rlt_core.contract.errors import PluginError
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import check_tables
from rlt_core.runtime.executor import Executor
from tests.attention_scenes import LENGTH, Hiding, Memory, Text, dense_row, hide, in_tiles
from tests.engines import Setup, build, greedy, run_alone
from tests.plugin_kit import ALL, attention, candidate, conflict_of, model, registry_of

HEADS = (4, 2, 12)


@pytest.mark.parametrize("page_size", [4, 128])
def test_a_hidden_key_is_absent(page_size: int, seed: int) -> None:
    """A weight that is small in place of zero lets NaN through; a chunk without a visible key, the
    first key and the whole first chunk included, must leave the rest as it is."""
    text = Text.random(seed % 1000, HEADS, torch.float32)
    hidden = hide(text, seed)
    for position in (0, 1, 127, 128, 200, 255, 256, 299):
        for cover in (hidden, torch.ones_like(hidden)):
            memory = Hiding(text, cover, page_size, 1)
            memory.fill(position)
            found = memory.attend([[position]])[position]
            torch.testing.assert_close(
                found.double(), dense_row(text, cover, position), atol=2e-6, rtol=0
            )


def test_hidden_keys_keep_the_bits_of_every_arrangement(seed: int) -> None:
    """Rows of a cell and rows alone, pages of any size: the same bits, as without hidden keys."""
    text = Text.random(seed % 1000, HEADS, torch.float32)
    hidden = hide(text, seed)
    hidden[256:264] = False
    wanted = dict[int, Tensor]()
    for position in range(256, 264):
        memory = Hiding(text, hidden, 16, 2)
        memory.fill(position)
        wanted |= memory.attend([[position]])
    for page_size in (4, 16, 128):
        memory = Hiding(text, hidden, page_size, 3)
        memory.fill(256)
        found = memory.attend(in_tiles(256, 264))
        assert all(torch.equal(found[p], wanted[p]) for p in wanted), page_size


def test_hiding_nothing_is_as_without(seed: int) -> None:
    """A layout that happens to hide no key must give the bits of one that cannot."""
    text = Text.random(seed % 1000, HEADS, torch.float32)
    plain = Memory(text, 16, 4).attend(in_tiles(0, LENGTH))
    found = Hiding(text, torch.zeros(384, dtype=torch.bool), 16, 4).attend(in_tiles(0, LENGTH))
    assert all(torch.equal(found[p], plain[p]) for p in plain)


def _tables(**changes: Any) -> LayoutTables:
    return replace(NoFill().tables(3), **changes)


def test_tables_that_hide_are_checked() -> None:
    """The device compares KV depths with plane numbers: other tables would hide the wrong keys."""
    check_tables(_tables(), 3)
    rule = _tables().prompt
    shifted = replace(rule, write=(1, 0, 2), read=(1, 0, 2))
    filled = replace(rule, fill=((1,), (), ()))
    for changes, words in (
        ({"prompt": shifted}, "prompt must write plane d - 1"),
        ({"decode": filled}, "decode must write plane d - 1"),
        ({"missing": "lost"}, "missing is 'lost'"),
    ):
        with pytest.raises(PluginError) as error:
            check_tables(_tables(**changes), 3, "odd")
        assert words in error.value.reason


def test_all_depths_hide_or_none() -> None:
    """One engine serves requests of several depths with one rule."""

    class Mixed(NoFill):
        def tables(self, loops: int) -> LayoutTables:
            tables = super().tables(loops)
            return tables if loops > 1 else replace(tables, missing="filled")

    track = TrackSpec(name="core", num_layers=1, num_kv_heads=1, head_dim=2, per_depth=True)
    shape = ModelShape(
        loops=2,
        max_loops=2,
        vocab_size=8,
        state_width=4,
        max_positions=64,
        dtype="float32",
        tracks=(track,),
        eos_token_ids=(),
        config=None,
    )
    with pytest.raises(PluginError, match="the same for every depth"):
        plan_kv(shape, Mixed(), page_size=4, max_depth=2, element_bytes=4)
    assert plan_kv(shape, NoFill(), page_size=4, max_depth=2, element_bytes=4).hides


def test_a_backend_that_cannot_hide_is_refused() -> None:
    """A kernel that ignores the mask would read what was never written."""
    registry = registry_of(
        candidate("counter", rlt_models=lambda: [model("counter", *ALL)]),
        candidate("hider", rlt_kv_layouts=rlt_kv_layouts),
        candidate("fast", rlt_attention_backends=lambda: [attention("fast")]),
    )
    error = conflict_of(registry, kv_layout="no_fill", attention="fast")
    (conflict,) = error.conflicts
    assert conflict.left == "KV layout 'no_fill' (rlt-hider 1.0)"
    assert conflict.right == "attention backend 'fast' (rlt-fast 1.0)"
    assert "needs hidden_keys" in conflict.reason
    assert error.fixes[0] == "--attention torch"


def test_a_layout_that_does_not_say_so_is_refused() -> None:
    """Tables that hide, under a spec that asks nothing of the backend, end at start-up."""
    (spec,) = rlt_kv_layouts()
    built = build(Setup(layout="no_fill"))
    assert isinstance(spec, KVLayoutSpec)
    blind = replace(built.plan.attention, provides=frozenset({Word.EXACT}))
    plan = replace(built.plan, attention=blind)
    with pytest.raises(PluginError, match="needs? hidden_keys"):
        Executor(plan, built.config, built.kv, built.executor.program.model, NoFill())


def test_other_layouts_keep_no_depths() -> None:
    """What nobody asked for must cost neither memory nor a mask."""
    for layout in ("last_exited", "shared", "last_step"):
        assert build(Setup(layout=layout)).executor.slots.key_depth is None
    built = build(Setup(layout="no_fill", policy="trace", num_slots=1))
    prompt, script = [3, 1, 4], [5, 1, 3, 5, 2]
    request = greedy(0, prompt, 5, built.setup, trace=torch.tensor(script).numpy())
    assert run_alone(built, request).depths == script
    depths = built.executor.slots.key_depth
    assert depths is not None
    # Three prompt positions, then outputs 1 .. 4 as inputs: depth of the output each one gave.
    assert depths[0, :7].tolist() == [5, 5, 5, 1, 3, 5, 2]
