"""A stage on a GPU: it waits for nothing in the steady state, and padding writes nowhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.engines import DEVICE, Setup, build, greedy, run_together

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _on_the_gpu() -> None:
    if not DEVICE.startswith("cuda"):
        pytest.skip("RLT_TEST_DEVICE=cuda runs it (make test-gpu)")


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """torch raises where it would wait for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [False, True])
def test_a_decode_tick_waits_for_nothing(graphs: bool, no_waiting: None) -> None:
    """A read back to the host, or a copy from ordinary memory, would leave the GPU idle in every
    tick: torch raises at each of them."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=4, graphs=graphs)
    built = build(setup)
    params = {"exit_params": {"exit_threshold": 0.5}}
    for i in range(4):
        built.engine.add(greedy(i, [3 + i, 5, 7], 60, setup, **params))
    while built.engine.counts.decode_rows < 8:
        built.engine.step()
    before = built.engine.counts.ticks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            tick = built.scheduler.next_tick()
            if tick is not None:
                torch.cuda.set_sync_debug_mode("error")
                built.executor.submit(tick)
                torch.cuda.set_sync_debug_mode("default")
            built.scheduler.apply(built.executor.collect())
    assert built.engine.counts.ticks >= before + 19


@pytest.mark.parametrize("strategy", ["refill", "cohort"])
def test_padded_rows_write_nowhere(strategy: str) -> None:
    """Five slots run in a graph of six rows: the sentinel page must stay zero, bit for bit."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=6, graphs=True, strategy=strategy)
    built = build(setup)
    params = {"exit_params": {"exit_threshold": 0.5}}
    run_together(built, [greedy(i, [3 + i, 5, 7], 9, setup, **params) for i in range(5)])
    torch.cuda.synchronize()
    assert not built.executor.pool.storage[0].view(torch.int32).any()
    slots = built.executor.slots
    assert not slots.tables[slots.sentinel].any()
    assert int(slots.phase[slots.sentinel]) == 0
