"""rlt-kernels' fill against the pool's own."""

from __future__ import annotations

import pytest
import torch

from rlt_core.kv.pool import DevicePool
from rlt_core.kv.tables_device import DeviceTables
from rlt_kernels.fill import fill
from tests.test_kv_pool import LOOPS, PAGE, WIDTH, full_tables, make_plan


@pytest.mark.parametrize("heads_differ", [False, True])
def test_one_launch_fills_as_the_pool_does(heads_differ: bool, seed: int) -> None:
    """Planes, parts, layers or offsets of other rows; rows without targets, whose position and
    depth may be anything; both rules; rows of the sentinel slot."""
    plan = make_plan(heads_differ)
    tables, num_pages = full_tables(plan, 3)
    device = DeviceTables(plan, "cpu")
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(num_pages, plan.page_elements, generator=draw)
    start[0] = 0
    order = torch.randperm(3 * PAGE * WIDTH, generator=draw)[:20]  # no position twice
    slot = torch.cat((order // (PAGE * WIDTH), torch.tensor([3, 3])))
    position = torch.cat((order % (PAGE * WIDTH), torch.tensor([0, 999])))
    depth = torch.randint(1, LOOPS + 1, slot.shape, generator=draw)
    leaves = torch.rand(slot.shape, generator=draw) < 0.6
    leaves[-1], depth[-1] = False, 0
    rule = torch.randint(0, 2, slot.shape, generator=draw)
    source, targets = device.exits(rule, torch.full_like(slot, LOOPS), depth, leaves)
    found = []
    for filler in (None, fill):
        pool = DevicePool(plan, num_pages, "cpu", torch.float32)
        pool.storage.copy_(start)
        pool.filler = filler
        pool.fill(tables, slot, position, source, targets)
        found.append(pool.storage)
    assert not torch.equal(found[0], start)
    assert torch.equal(found[0], found[1])
