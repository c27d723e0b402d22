"""Preempted requests whose pages wait in host memory, over the fake device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlt_core.contract.errors import CapacityError
from rlt_core.kv.pool import DevicePool
from rlt_core.kv.swap import SwapSpace
from rlt_core.runtime.batch import PageCopy, Resumed
from rlt_core.runtime.slots import EMPTY, READY
from rlt_core.runtime.swap import _host_pages, _runs, _Travelling
from rlt_core.schedule.record import State
from tests.engines import Setup, build
from tests.host_runs import Answer, HostRun, alone, random_requests
from tests.test_prefix_cache import CHOICES, IDS, request, tokens


def test_swap_space_gives_each_page_once() -> None:
    """A host page given twice mixes two requests; a full space says so."""
    space = SwapSpace(5)
    first, second = space.take(3), space.take(2)
    assert first is not None
    assert second is not None
    assert sorted([*first, *second]) == list(range(5))
    assert space.take(1) is None
    space.give_back(first)
    again = space.take(3)
    assert again is not None
    assert sorted(again) == sorted(first)


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
@pytest.mark.parametrize("num_outputs", [1, 3, 14])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_swapped_request_goes_on_where_it_was(
    choice: dict[str, Any], num_outputs: int, prefix_cache: bool
) -> None:
    """No position is computed again: no prompt row after the resume; the unfinished token begins
    at depth 1; outputs in flight when it lost its slot are kept (CASES A97)."""
    run = HostRun(**choice, swap_pages=200, prefix_cache=prefix_cache)
    own = request(0, tokens(10), 20)
    run.add(own)
    while len(run.answers.get(0, Answer()).outputs) < num_outputs:
        run.step()
    run.scheduler.preempt(0)
    assert run.scheduler.records[0].state is State.PREEMPTED
    rows: list[int] = []
    submit = run.device.submit

    def watched(tick: Any) -> None:
        rows.append(len(tick.prompt))
        submit(tick)

    run.device.submit = watched  # type: ignore[method-assign]  # watched
    run.finish()
    assert run.counts.swaps == 1
    assert not any(rows)
    assert run.answers[0] == alone(own, prefix_cache=False, **choice)


def test_a_full_swap_space_means_computing_again() -> None:
    """What does not fit is recomputed, and what was swapped gives its host pages back."""
    run = HostRun(swap_pages=60)
    asked = [request(i, tokens(10, i), 20) for i in range(3)]
    run.add(*asked)
    while min(len(run.answers.get(i, Answer()).outputs) for i in range(3)) < 2:
        run.step()
    for i in range(3):
        run.scheduler.preempt(i)
    assert run.counts.swaps == 2
    run.finish()
    assert [run.answers[i] for i in range(3)] == [alone(r, prefix_cache=False) for r in asked]


@pytest.mark.parametrize("choice", CHOICES, ids=IDS)
def test_random_preemptions_with_little_host_memory(choice: dict[str, Any], seed: int) -> None:
    """Swapped, recomputed, aborted while swapped, swapped twice in a row, ended by an output that
    was in flight: each request gets what it gets alone, and all host pages come back."""
    rng = np.random.default_rng(seed)
    requests = random_requests(rng, 10)
    sizes: dict[str, Any] = {"num_slots": 3, "chunk_size": 4, "num_places": 12, "swap_pages": 90}
    run = HostRun(**choice, **sizes, prefix_cache=bool(rng.integers(2)))
    run.add(*requests)
    while run.engine.has_work:
        live = list(run.scheduler.records)
        if live and rng.random() < 0.3:
            run.scheduler.preempt(live[int(rng.integers(len(live)))])
        if live and rng.random() < 0.02:
            run.abort(live[int(rng.integers(len(live)))])
        run.step()
        run.scheduler.pages.check()
    run.finish()
    print(run.counts)
    space = run.scheduler._residency.swapping.space
    assert space.num_free == space.num_pages
    for one in requests:
        if one.request_id not in run.aborted:
            assert run.answers[one.request_id] == alone(one, prefix_cache=False, **choice), one


class _Event:
    """An event of a GPU that is done when it is told."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def test_ticks_wait_for_pages_on_their_way_and_slots_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that is given away while its copy to the host still runs is overwritten in it; a slot
    that goes on before its pages are back reads what was there. Other ticks do not wait."""
    built = build(Setup(model="ouro_b", swap_pages=8))
    swaps, slots = built.executor.swaps, built.executor.slots
    waited: list[_Event] = []
    stream = SimpleNamespace(wait_event=waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    first, second, back = _Event(), _Event(), _Event()
    swaps._travelling = [
        _Travelling(np.array([3, 4], np.int32), first),  # type: ignore[arg-type]  # no GPU here
        _Travelling(np.array([9], np.int32), second),  # type: ignore[arg-type]
    ]
    swaps.guard(np.array([5, 6], np.int32))
    assert waited == []
    swaps.guard(np.array([4, 6], np.int32))
    assert waited == [first]
    second.done = True
    swaps.guard(np.array([9], np.int32))
    assert waited == [first]
    assert not swaps.busy
    none = PageCopy(pages=np.zeros(0, np.int32), host=np.zeros(0, np.int64))
    resumed = Resumed(slot=1, token=7, position=12, copy=none)
    swaps._returning = [(resumed, back)]  # type: ignore[list-item]
    swaps.arrive()
    assert int(slots.phase[1]) == EMPTY
    back.done = True
    swaps.arrive()
    assert [int(x[1]) for x in (slots.phase, slots.token, slots.position)] == [READY, 7, 12]
    swaps._returning = [(resumed, _Event())]  # type: ignore[list-item]
    swaps.cleared(np.array([1]))
    assert swaps._returning == []


def test_neighbours_travel_in_one_copy() -> None:
    """Runs that are cut wrongly copy pages to places of others."""
    runs = _runs(np.array([3, 4, 5, 9, 10, 11], np.int32), np.array([0, 1, 2, 3, 4, 8]))
    assert runs == [(3, 0, 3), (9, 3, 2), (11, 8, 1)]
    assert _runs(np.array([2], np.int32), np.array([5])) == [(2, 5, 1)]


def test_host_memory_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's error ended the start-up as a fault of rlt, with a traceback."""

    def none(*args: object, **options: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", none)
    pool = SimpleNamespace(
        plan=SimpleNamespace(page_elements=1 << 18, page_bytes=1 << 20),
        storage=SimpleNamespace(dtype=torch.float32),
    )
    with pytest.raises(CapacityError, match=r"no 3\.0 MiB for preempted requests\nFix: a smaller"):
        _host_pages(cast(DevicePool, pool), 3, pin=True)
