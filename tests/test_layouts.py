"""The three layouts' tables, and what a third party's wrong tables get."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlt_core.contract.errors import PluginError
from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.specs import ModelShape, TrackSpec
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import LastExited, LastStep, Shared, check_tables
from rlt_core.kv.tables_device import DeviceTables


def test_last_exited_tables() -> None:
    """A1: one plane per loop, not per layer; a fill one plane short leaves stale keys."""
    tables = LastExited().tables(4)
    rule = PlaneRule(write=(0, 1, 2, 3), read=(0, 1, 2, 3), fill=((1, 2, 3), (2, 3), (3,), ()))
    assert (tables.num_planes, tables.kept, tables.prompt_order) == (4, (0, 1, 2, 3), "depth")
    assert tables.prompt == tables.decode == rule
    assert not tables.replay_is_serial


def test_shared_tables() -> None:
    """A prompt run depth by depth would read keys of a deeper loop of its own chunk."""
    tables = Shared().tables(3)
    rule = PlaneRule(write=(0, 0, 0), read=(0, 0, 0), fill=((), (), ()))
    assert (tables.num_planes, tables.kept, tables.prompt_order) == (1, (0,), "position")
    assert tables.prompt == tables.decode == rule
    assert tables.replay_is_serial


def test_last_step_tables() -> None:
    """Sharing in the prompt too costs ten points; decoding must use the prompt's last plane."""
    tables = LastStep().tables(3)
    assert tables.prompt == LastExited().tables(3).prompt
    assert tables.decode == PlaneRule(write=(2, 2, 2), read=(2, 2, 2), fill=((), (), ()))
    assert (tables.num_planes, tables.kept, tables.prompt_order) == (3, (2,), "depth")
    assert tables.replay_is_serial


@pytest.mark.parametrize("layout", [LastExited(), Shared(), LastStep()])
@pytest.mark.parametrize("loops", [1, 2, 7])
def test_own_tables_pass(layout: LastExited | Shared | LastStep, loops: int) -> None:
    """The check must not refuse what the core ships, one loop included."""
    check_tables(layout.tables(loops), loops)


def _with_rule(phase: str, **changes: object) -> LayoutTables:
    tables = LastExited().tables(3)
    rule: PlaneRule = replace(getattr(tables, phase), **changes)
    return replace(tables, **{phase: rule})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (LastExited().tables(2), "prompt.write has 2 entries"),
        (_with_rule("decode", fill=((1, 2), (2,))), "decode.fill has 2 entries"),
        (_with_rule("prompt", write=(0, 1, 3)), "prompt.write names planes [3]"),
        (_with_rule("decode", read=(-1, 1, 2)), "decode.read names planes [-1]"),
        (_with_rule("prompt", read=(1, 2, 0)), "prompt.read is (1, 2, 0), prompt.write (0, 1, 2)"),
        (_with_rule("decode", read=(2, 2, 2)), "decode.read is (2, 2, 2)"),
        (_with_rule("decode", fill=((0, 1, 2), (2,), ())), "decode.fill at exit 1"),
        (_with_rule("decode", fill=((1, 1), (2,), ())), "decode.fill at exit 1"),
        (_with_rule("decode", fill=((1, 3), (2,), ())), "decode.fill at exit 1"),
        (_with_rule("decode", fill=((1, 2), (2,), (0,))), "decode.fill at the last depth"),
        (_with_rule("prompt", write=(0, 0, 1), read=(0, 0, 1)), "two depths of a prompt"),
        (replace(LastExited().tables(3), kept=()), "kept ()"),
        (replace(LastExited().tables(3), kept=(0, 1, 3)), "kept (0, 1, 3)"),
        (replace(LastExited().tables(3), kept=(2,)), "decode.write names planes [0, 1]"),
        (replace(LastExited().tables(3), num_planes=2), "kept (0, 1, 2)"),
        (
            replace(LastExited().tables(3), prompt_order="sideways"),  # type: ignore[arg-type]
            "prompt_order",
        ),
    ],
)
def test_wrong_tables_are_named(tables: LayoutTables, words: str) -> None:
    """A third party's off-by-one must end at start-up, not as a read of the sentinel page."""
    with pytest.raises(PluginError) as error:
        check_tables(tables, 3, "rlt-odd")
    assert error.value.plugin == "rlt-odd"
    assert words in error.value.reason


def test_an_exit_that_fills_planes_of_fewer_loops_is_replayed_alone() -> None:
    """Guards a replay in chunks, whose later positions read a plane before the exit of an earlier
    one fills it: seen as other logits after a preemption."""
    back = _with_rule("decode", fill=((1, 2), (0, 2), ()))
    check_tables(back, 3)
    assert back.replay_is_serial
    assert not LastExited().tables(3).replay_is_serial


def test_device_tables_equal_the_host_ones() -> None:
    """Depths count from 1 and planes from 0: an index off by one reads a neighbour's plane."""
    track = TrackSpec(name="core", num_layers=1, num_kv_heads=1, head_dim=2, per_depth=True)
    shape = ModelShape(
        loops=4,
        max_loops=4,
        vocab_size=8,
        state_width=4,
        max_positions=64,
        dtype="float32",
        tracks=(track,),
        eos_token_ids=(),
        config=None,
    )
    for layout in (LastExited(), Shared(), LastStep()):
        plan = plan_kv(shape, layout, page_size=4, max_depth=5, element_bytes=4)
        device = DeviceTables(plan, "cpu")
        for loops in range(1, 6):
            tables = layout.tables(loops)
            for number, rule in enumerate((tables.prompt, tables.decode)):
                depth = torch.arange(1, loops + 1)
                at = (torch.full_like(depth, number), torch.full_like(depth, loops), depth)
                write, read = device.planes(*at)
                assert tuple(write.tolist()) == rule.write
                assert tuple(read.tolist()) == rule.read
                leaves = torch.ones(loops, dtype=torch.bool)
                source, targets = device.exits(*at, leaves)
                assert tuple(source.tolist()) == rule.write
                found = tuple(tuple(row.nonzero()[:, 0].tolist()) for row in targets)
                assert found == rule.fill
                assert not device.exits(*at, ~leaves)[1].any()
                assert not device.fill[number, loops, 0].any()
