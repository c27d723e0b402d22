"""The host's page tables against a naive model, and no page lost or given twice."""

from __future__ import annotations

import numpy as np
import pytest

from rlt_core.contract.errors import CapacityError
from rlt_core.contract.specs import ModelShape, TrackSpec
from rlt_core.kv.accounting import Phase, page_rows, plan_kv
from rlt_core.kv.layouts import LastExited, LastStep, Shared
from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import KVPlan

Layout = LastExited | Shared | LastStep
LAYOUTS = [LastExited(), Shared(), LastStep()]
DEPTH = 5


def make_plan(layout: Layout, page_size: int = 4) -> KVPlan:
    """Three tracks, the looped one in two parts."""

    def track(name: str, layers: int, per_depth: bool) -> TrackSpec:
        return TrackSpec(
            name=name, num_layers=layers, num_kv_heads=1, head_dim=2, per_depth=per_depth
        )

    shape = ModelShape(
        loops=DEPTH,
        max_loops=DEPTH,
        vocab_size=8,
        state_width=4,
        max_positions=4096,
        dtype="float32",
        tracks=(track("prelude", 1, False), track("core", 2, True), track("coda", 1, False)),
        eos_token_ids=(),
        config=None,
    )
    return plan_kv(shape, layout, page_size=page_size, max_depth=DEPTH, element_bytes=4)


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """An int64 array."""
    return np.array(values, np.int64)


class Naive:
    """What each slot should hold, as sets, and the device's table built from the changes."""

    def __init__(self, plan: KVPlan, pages: HostPages, num_slots: int) -> None:
        self.plan, self.pages = plan, pages
        self.loops = [0] * num_slots
        self.phase: list[Phase] = ["prompt"] * num_slots
        self.columns = [0] * num_slots
        self.device = np.zeros_like(pages.table)
        self.cleared: list[int] = []  # slots freed since the last comparison

    def wanted(self, slot: int) -> set[tuple[int, int]]:
        """(table row, index) pairs that must have a page."""
        if not self.columns[slot]:
            return set()
        rows = page_rows(self.plan, self.loops[slot], self.phase[slot])
        return {(row, index) for row in rows for index in range(self.columns[slot])}

    def compare(self) -> None:
        """Table, limits, free count and what the device was told."""
        self.pages.check()
        total = 0
        for slot in range(len(self.loops)):
            held = {(int(r), int(i)) for r, i in zip(*np.nonzero(self.pages.table[slot]))}  # noqa: B905
            assert held == self.wanted(slot)
            assert self.pages.page_limit[slot] == self.columns[slot] * self.plan.page_size
            total += len(held)
        assert self.pages.num_free == self.pages.num_usable - total
        at, values = self.pages.take_changes()
        self.device[self.cleared] = 0
        self.cleared = []
        # Back to front: entries that come twice must agree whatever the order of writing.
        self.device.reshape(-1)[at[::-1]] = values[::-1]
        assert np.array_equal(self.device, self.pages.table)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle_seed", [None, 5])
def test_random_work_against_sets(layout: Layout, shuffle_seed: int | None) -> None:
    """A page given to two requests, or lost, after some order of grow, drop and free."""
    seed, num_slots, width = 4711, 6, 7
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    plan = make_plan(layout)
    num_pages = 1 + 14 * len(page_rows(plan, DEPTH, "decode"))
    pages = HostPages(plan, num_slots, width, num_pages, shuffle_seed)
    naive = Naive(plan, pages, num_slots)
    refused = dropped = grown = freed = 0
    for _ in range(1500):
        free = [slot for slot in range(num_slots) if not naive.columns[slot]]
        held = [slot for slot in range(num_slots) if naive.columns[slot]]
        if free and rng.random() < 0.4:
            slot = int(rng.choice(free))
            naive.loops[slot], naive.phase[slot] = int(rng.integers(1, DEPTH + 1)), "prompt"
            pages.admit(slot, naive.loops[slot])
            held.append(slot)
        some = rng.permutation(held)[: rng.integers(0, len(held) + 1)].astype(np.int64)
        action = rng.random()
        if action < 0.6:
            to = rng.integers(0, width * plan.page_size + 1, len(some))
            columns = -(-to // plan.page_size)
            lacking = [
                max(int(c) - naive.columns[s], 0) for s, c in zip(some, columns, strict=True)
            ]
            needed = [
                lack * len(page_rows(plan, naive.loops[s], naive.phase[s]))
                for s, lack in zip(some, lacking, strict=True)
            ]
            assert pages.pages_needed(some, to).tolist() == needed
            before_grow = pages.num_free
            fits = pages.try_grow(some, to)
            assert fits == (sum(needed) <= before_grow)
            if fits:
                for slot, column in zip(some, columns, strict=True):
                    naive.columns[slot] = max(naive.columns[slot], int(column))
                grown += sum(needed) > 0
            else:
                with pytest.raises(CapacityError):
                    pages.grow(some, to)
                refused += 1
        elif action < 0.8:
            for slot in some.tolist():
                pages.drop_planes(slot)
                naive.phase[slot] = "decode"
            dropped += len(some)
        else:
            before = pages.table[some]
            for slot in some.tolist():
                pages.free(slot)
                naive.columns[slot] = 0
            naive.cleared += some.tolist()
            assert set(before[before != 0].tolist()) <= set(pages.take_freed().tolist())
            freed += len(some)
        if rng.random() < 0.5:
            naive.compare()
    naive.compare()
    print(f"{grown} grown, {refused} refused, {dropped} dropped, {freed} freed")
    assert min(grown, refused, dropped, freed) > 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_hundred_requests_leave_nothing(layout: Layout) -> None:
    """A25: memory climbed with each request."""
    seed = 25
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    plan = make_plan(layout)
    pages = HostPages(plan, 4, 16, 4 * 16 * plan.table_rows + 1, shuffle_seed=seed)
    for _ in range(50):
        slots = rng.permutation(4)
        prompt = rng.integers(1, 40, 4)
        for slot, loops in zip(slots.tolist(), rng.integers(1, DEPTH + 1, 4).tolist(), strict=True):
            pages.admit(slot, loops)
        pages.grow(slots, prompt)
        for slot in slots.tolist():
            pages.drop_planes(slot)
        for _ in range(3):
            prompt = prompt + rng.integers(0, 8, 4)
            pages.grow(slots, prompt)
        for slot in slots.tolist():
            pages.free(slot)
        pages.take_changes()
    assert pages.num_free == pages.num_usable == 4 * 16 * plan.table_rows
    assert not pages.table.any()
    assert not pages.page_limit.any()
    pages.check()


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_changes_name_the_entries_of_their_slot(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards indices that are looked up in small tables and computed in large ones."""
    monkeypatch.setattr("rlt_core.kv.table_index._MOST_IDS", most)
    pages = HostPages(make_plan(LastStep()), 3, 8, 900)
    device = np.zeros_like(pages.table)
    for slot in (2, 0):
        pages.admit(slot, DEPTH, 13)
        pages.drop_planes(slot)
        flat, page = pages.take_changes()
        device.reshape(-1)[flat] = page
        assert np.array_equal(device, pages.table)
    assert device.any((1, 2)).tolist() == [True, False, True]


def test_last_step_frees_what_it_drops() -> None:
    """The planes of a finished prompt stay allocated, or the kept one moves to other pages."""
    plan = make_plan(LastStep())
    pages = HostPages(plan, 2, 4, 200)
    slots = ints(1)
    pages.admit(1, 3)
    pages.grow(slots, ints(6))
    kept_rows = list(page_rows(plan, 3, "decode"))
    before = pages.table[1].copy()
    assert np.count_nonzero(before) == 2 * len(page_rows(plan, 3, "prompt"))
    assert len(pages.take_freed()) == 0
    pages.drop_planes(1)
    assert np.array_equal(pages.table[1][kept_rows], before[kept_rows])
    assert np.count_nonzero(pages.table[1]) == 2 * len(kept_rows)
    gone = set(before.ravel().tolist()) - set(pages.table[1].ravel().tolist())
    assert set(pages.take_freed().tolist()) == gone
    pages.drop_planes(1)
    assert len(pages.take_freed()) == 0
    pages.grow(slots, ints(9))
    assert np.count_nonzero(pages.table[1]) == 3 * len(kept_rows)


def test_page_freed_and_given_in_one_tick() -> None:
    """A97: the new owner's entry must win over the old owner's clearing, in any order."""
    plan = make_plan(LastExited())
    pages = HostPages(plan, 2, 2, 1 + plan.table_rows)
    pages.admit(0, DEPTH)
    pages.grow(ints(0), ints(4))
    pages.take_changes()
    pages.free(0)
    pages.admit(0, DEPTH)
    pages.grow(ints(0), ints(3))
    at, page = pages.take_changes()
    assert sorted(at.tolist()) == list(range(0, 2 * plan.table_rows, 2))
    assert (page != 0).all()
    assert np.array_equal(pages.table.reshape(-1)[at], page)
    assert len(set(pages.take_freed().tolist())) == plan.table_rows


def test_nothing_is_half_done() -> None:
    """A74: a growth that fails midway leaves pages that belong to nobody."""
    plan = make_plan(LastExited())
    pages = HostPages(plan, 2, 4, 1 + 3 * plan.table_rows)
    both = ints(0, 1)
    for slot in both.tolist():
        pages.admit(slot, DEPTH)
    with pytest.raises(CapacityError, match=f"{4 * plan.table_rows} KV pages.*"):
        pages.grow(both, ints(8, 8))
    with pytest.raises(CapacityError, match="20 positions asked .* has 16"):
        pages.grow(ints(0), ints(17))
    assert pages.num_free == pages.num_usable
    assert not pages.table.any()
    assert pages.take_changes()[0].size == 0
    pages.check()


@pytest.mark.parametrize("lacking", [0, 1])
def test_last_free_page(lacking: int) -> None:
    """A74: one page too few is too few, and the last one can be had."""
    plan = make_plan(LastExited())
    pages = HostPages(plan, 2, 4, 1 + 4 * plan.table_rows - lacking)
    both, to = ints(0, 1), ints(8, 8)
    for slot in both.tolist():
        pages.admit(slot, DEPTH)
    assert pages.try_grow(both, to) == (not lacking)
    assert pages.num_free == (pages.num_usable if lacking else 0)
    pages.check()


def test_reuse_is_adversarial_when_shuffled() -> None:
    """A97: a LIFO free list hands the same pages back and hides a stale table."""
    plan = make_plan(LastExited())

    def second_owner(shuffle_seed: int | None) -> float:
        pages = HostPages(plan, 1, 4, 4 * plan.table_rows + 1, shuffle_seed)
        tables = []
        for _ in range(2):
            pages.admit(0, DEPTH)
            pages.grow(ints(0), ints(16))
            tables.append(pages.table.copy())
            pages.free(0)
        return float((tables[0] == tables[1]).mean())

    assert second_owner(1) < 0.3
    pages = HostPages(plan, 1, 4, 99, shuffle_seed=2)
    pages.admit(0, DEPTH)
    pages.grow(ints(0), ints(4))
    assert sorted(pages.table[pages.table != 0].tolist()) != list(range(1, plan.table_rows + 1))
