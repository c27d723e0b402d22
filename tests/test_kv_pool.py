"""The device pool: views that do not overlap, poison, and the fill on exit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlt_core.contract.specs import ModelShape, TrackSpec
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import LastExited
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.pool import DevicePool
from rlt_core.kv.tables_device import DeviceTables
from rlt_core.testing.checks.host_reads import LightMode

LOOPS, PAGE, WIDTH = 4, 4, 3


class NoHostReads(LightMode):
    """Raises on host reads and data-dependent shapes, and counts operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func)
        if any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select")):
            raise AssertionError(f"{name} in the tick")
        # An index by a mask finds its size inside the operator, where no mode sees it.
        indices = args[1] if name.startswith(("aten.index.", "aten.index_put")) else ()
        if any(index is not None and index.dtype == torch.bool for index in indices):
            raise AssertionError(f"{name} by a mask in the tick")
        self.count += 1
        return func(*args, **(kwargs or {}))


def make_plan(heads_differ: bool = False) -> KVPlan:
    """Three tracks, the looped one in two parts (in one where the heads differ)."""
    core_heads = 3 if heads_differ else 2
    tracks = (
        TrackSpec(name="prelude", num_layers=2, num_kv_heads=2, head_dim=4, per_depth=False),
        TrackSpec(name="core", num_layers=4, num_kv_heads=core_heads, head_dim=4, per_depth=True),
        TrackSpec(name="coda", num_layers=2, num_kv_heads=2, head_dim=4, per_depth=False),
    )
    shape = ModelShape(
        loops=LOOPS,
        max_loops=LOOPS,
        vocab_size=8,
        state_width=4,
        max_positions=64,
        dtype="float32",
        tracks=tracks,
        eos_token_ids=(),
        config=None,
    )
    return plan_kv(shape, LastExited(), page_size=PAGE, max_depth=LOOPS, element_bytes=4)


def full_tables(plan: KVPlan, num_slots: int) -> tuple[Tensor, int]:
    """(tables with a page in every entry, none twice; the page count)."""
    entries = num_slots * plan.table_rows * WIDTH
    tables = torch.zeros(num_slots + 1, plan.table_rows, WIDTH, dtype=torch.int32)
    order = torch.randperm(entries, generator=torch.Generator().manual_seed(3)) + 1
    tables[:num_slots] = order.view(num_slots, plan.table_rows, WIDTH).int()
    return tables, entries + 1


@pytest.mark.parametrize("heads_differ", [False, True])
def test_pages_do_not_overlap(heads_differ: bool) -> None:
    """A1: (layer, depth, k or v, position) of one request landing on another's bytes."""
    plan = make_plan(heads_differ)
    tables, num_pages = full_tables(plan, 2)
    pool = DevicePool(plan, num_pages, "cpu", torch.float32)
    value = 0
    wanted = {}
    for slot in range(2):
        for track in plan.tracks:
            for row in range(track.first, track.first + track.num_planes * track.parts):
                for index in range(WIDTH):
                    view = pool.view(track.name)[int(tables[slot, row, index])]
                    size = (track.unit_layers, 2, PAGE, track.num_kv_heads, track.head_dim)
                    assert view.shape == size
                    view.copy_(torch.arange(value, value + view.numel()).view(size))
                    wanted[slot, track.name, row, index] = (value, view.numel())
                    value += view.numel()
    for (slot, name, row, index), (start, count) in wanted.items():
        found = pool.view(name)[int(tables[slot, row, index])].flatten()
        assert torch.equal(found, torch.arange(start, start + count).float())


def test_debug_pool_is_poisoned() -> None:
    """A stale page read by its next owner shows as NaN only if freeing really poisons it."""
    plan = make_plan()
    pool = DevicePool(plan, 6, "cpu", torch.float32, debug=True)
    assert pool.storage[1:].isnan().all()
    assert (pool.storage[0] == 0).all()
    pool.storage.fill_(1.0)
    pool.poison(torch.tensor([4, 2]))
    poisoned = pool.storage.isnan().all(1)
    assert poisoned.tolist() == [False, False, True, False, True, False]
    assert not pool.storage[[0, 1, 3, 5]].isnan().any()
    plain = DevicePool(plan, 6, "cpu", torch.float32)
    plain.poison(torch.tensor([1]))
    assert not plain.storage.isnan().any()


def test_pool_of_another_dtype_is_refused() -> None:
    """A28: bytes counted for bfloat16 and allocated as float32."""
    with pytest.raises(ValueError, match="4 bytes an element"):
        DevicePool(make_plan(), 4, "cpu", torch.bfloat16)


@pytest.mark.parametrize("heads_differ", [False, True])
def test_fill_copies_the_exit_to_every_deeper_plane(heads_differ: bool) -> None:
    """A5: deeper planes shorter than shallow ones after an early exit; also a fill one plane
    short, of one part or of k alone, or at a neighbour's offset."""
    seed = 20
    print(f"seed {seed}")
    plan = make_plan(heads_differ)
    tables, num_pages = full_tables(plan, 3)
    pool = DevicePool(plan, num_pages, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(seed)
    pool.storage.copy_(torch.randn(pool.storage.shape, generator=generator))
    before = pool.storage.clone()
    # (slot, position, exit depth, leaves): two rows of one request, a row of the sentinel slot,
    # one that stays, one with nothing sensible in its fields, one that ran all loops.
    rows = [(0, 5, 1, 1), (0, 6, 3, 1), (1, 11, 2, 1), (3, 0, 1, 1), (2, 3, 1, 0), (2, 99, 0, 0)]
    rows.append((2, 0, 4, 1))
    slot, position, depth, leaves = torch.tensor(rows).T
    device = DeviceTables(plan, "cpu")
    rule, loops = torch.ones_like(slot), torch.full_like(slot, LOOPS)
    source, targets = device.exits(rule, loops, depth, leaves.bool())
    pool.fill(tables, slot, position, source, targets)

    expected = DevicePool(plan, num_pages, "cpu", torch.float32)
    expected.storage.copy_(before)
    core = plan.tracks[1]
    view = expected.view("core")
    for at, pos, exit_depth, _ in (row for row in rows[:3]):
        for plane in range(exit_depth, LOOPS):
            for part in range(core.parts):
                index, offset = divmod(pos, PAGE)
                start = core.first + part
                page_from = tables[at, start + (exit_depth - 1) * core.parts, index]
                page_to = tables[at, start + plane * core.parts, index]
                view[int(page_to), :, :, offset] = view[int(page_from), :, :, offset]
    assert not torch.equal(expected.storage[1:], before[1:])
    assert torch.equal(pool.storage[1:], expected.storage[1:])


def test_fill_reads_nothing_back() -> None:
    """A host read or a data-dependent shape in the fill would stop graphs and stall the tick."""
    plan = make_plan()
    tables, num_pages = full_tables(plan, 3)
    pool = DevicePool(plan, num_pages, "cpu", torch.float32)
    device = DeviceTables(plan, "cpu")
    counts = set()
    for num_rows in (2, 8, 64, 256):
        slot = torch.arange(num_rows) % 3
        position = torch.arange(num_rows) % (PAGE * WIDTH)
        depth = torch.arange(num_rows) % LOOPS + 1
        loops = torch.full_like(depth, LOOPS)
        with NoHostReads() as mode:
            source, targets = device.exits(torch.ones_like(slot), loops, depth, depth < 3)
            pool.fill(tables, slot, position, source, targets)
        counts.add(mode.count)
    assert len(counts) == 1
