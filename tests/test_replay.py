"""Captures: what must not happen while one is under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from rlt_core.runtime.collect import Results
from rlt_core.runtime.replay import Replay, no_garbage
from tests.gpu_kit import needs_gpu


@pytest.fixture(autouse=True)
def eager_collector() -> Iterator[None]:
    """A collector that is on before and after, whatever a test does."""
    before = gc.get_threshold()
    gc.enable()
    yield
    gc.set_threshold(*before)
    gc.enable()


def test_the_collector_stands_still_and_goes_on_as_before() -> None:
    """Guards a capture from the collector, and the program from one that stays off: also where a
    capture fails, and where the program had switched it off."""
    with no_garbage():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="capture"), no_garbage():
        raise ValueError("capture")
    assert gc.isenabled()
    gc.disable()
    with no_garbage():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.gpu
def test_a_graph_that_is_garbage_ends_no_capture() -> None:
    """Guards the second engine of a process: the first one's graphs, freed by the collector in the
    middle of a capture, made it fail."""
    needs_gpu()
    value = torch.zeros(4, device="cuda")

    def tick() -> Results:
        value.add_(1)
        # Garbage that makes the collector look.
        _ = [[i] for i in range(100)]
        return cast(Results, value)

    for _ in range(3):
        old: dict[str, Any] = {"graph": Replay(tick, value.device, None)}
        old["itself"] = old
        gc.set_threshold(1_000_000)
        del old
        torch.cuda.synchronize()
        gc.set_threshold(1, 1, 1)
        replay = Replay(tick, value.device, None)
        before = value.clone()
        replay()
        assert torch.equal(value, before + 1)
