"""What is refused, or picked, before a stage runs: ticks in flight, a GPU's generation, sizes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import msgspec
import pytest
import torch

from rlt_core.contract.errors import CapacityError, OptionError
from rlt_core.contract.specs import OpSpec
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.layouts import LastExited
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve
from rlt_core.runtime.options import room_places
from rlt_core.stage import build, sizes
from rlt_core.stage.config import StageConfig
from tests.engines import GOLDEN


@pytest.mark.parametrize("number", [0, 3])
def test_ticks_in_flight_are_one_or_two(number: int) -> None:
    """The host's buffers take turns in threes: a fourth tick would overwrite one that is read."""
    config = StageConfig(model_path=str(GOLDEN / "ouro_b"), ticks_in_flight=number)
    with pytest.raises(OptionError, match="1 or 2"):
        build.build_parts(config)


def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for sm_80 fails on an older chip with a compiler's error, long after the start."""
    registry = discover()
    if not any(spec.id == "triton.linear" for spec in registry.all(OpSpec)):
        pytest.fail("rlt-kernels is not installed: make setup")
    plan = resolve(StageConfig(model_path=str(GOLDEN / "ouro_b"), device="cuda").choice(), registry)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    build.check_capability(plan)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(OptionError, match="compute capability 8.0; this GPU has 7.5"):
        build.check_capability(plan)


def test_a_gpu_s_pool_leaves_room_for_what_the_stage_keeps() -> None:
    """Counts of tokens for every slot are made with the graphs, and sampling works in their memory:
    without their share the first capture runs out of memory."""
    registry = discover()
    choice = StageConfig(model_path=str(GOLDEN / "huginn_b"), device="cuda", exact=False).choice()
    plan = resolve(choice, registry)
    kept = sizes._kept_bytes(plan, 100, 30, 64)
    item = getattr(torch, plan.dtype).itemsize
    tables = sum(
        room_places(width, 64, item) * width * 64 * item
        for width in plan.shape.table_widths.values()
    )
    assert tables > 0
    # A captured tick samples as many rows as may leave, and the ends of 32 prompts.
    assert kept == (5 * 101 + 25 * 4 * (101 + 32)) * plan.shape.vocab_size + tables
    assert room_places(1 << 20, 1 << 12, 4) == 1, "one table always fits"


def test_a_gpu_s_pool_leaves_room_for_the_policy_s_state() -> None:
    """A policy that compares distributions keeps one for every row: 1.4 GiB for large ones."""
    config = StageConfig(model_path=str(GOLDEN / "ouro_b"), device="cuda", exact=False)
    choices = (replace(config.choice(), exit_policy=policy) for policy in ("fixed", "kl"))
    plans = [resolve(choice, discover()) for choice in choices]
    without, kept = (sizes._kept_bytes(plan, 100, 30, 64) for plan in plans)
    assert kept - without == (101 + 30) * plans[0].shape.vocab_size * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_pool_that_is_asked_for_is_checked(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator's error came instead, or an overflow of its sizes."""
    config = StageConfig(model_path=str(GOLDEN / "ouro_b"), device=device, exact=False)
    plan = resolve(config.choice(), discover())
    kv = plan_kv(plan.shape, LastExited(), page_size=16, max_depth=4, element_bytes=4)
    for room, fits in ((399, False), (400, True)):
        monkeypatch.setattr(sizes, "_free_memory", lambda device, n=room: n * kv.page_bytes)
        for asked in ({"kv_pages": 400}, {"kv_memory": 400 * kv.page_bytes}):
            sized = msgspec.structs.replace(config, **asked)
            with nullcontext() if fits else pytest.raises(CapacityError, match="MiB free"):
                assert sizes._num_pages(sized, plan, kv, (4, 16), []) == 400


def test_what_torch_keeps_of_an_engine_that_ended_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the driver it is not: a second engine in one process got next to no pool."""
    free = [100]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(850))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[-1], 1000))
    assert sizes._free_memory("cuda:1") == 850


@pytest.mark.parametrize(
    "words", ["CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory: you tried"]
)
def test_memory_that_is_short_is_told(words: str) -> None:
    """What fails outside of torch's allocator, as a graph that is made, came as a traceback."""
    plan = resolve(StageConfig(model_path=str(GOLDEN / "ouro_b")).choice(), discover())
    kv = plan_kv(plan.shape, LastExited(), page_size=16, max_depth=4, element_bytes=4)
    planned = sizes.plan_sizes(StageConfig(kv_pages=400), plan, kv)
    with pytest.raises(CapacityError, match="no room for the KV pool"):
        with build._short_of_memory(plan, planned):
            raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="illegal"):
        with build._short_of_memory(plan, planned):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_host_pages_of_a_gpu_take_no_more_than_was_asked() -> None:
    """Pinned memory comes in powers of two: 40 GiB asked for were 64 taken."""
    plan = resolve(StageConfig(model_path=str(GOLDEN / "ouro_b")).choice(), discover())
    kv = plan_kv(plan.shape, LastExited(), page_size=16, max_depth=4, element_bytes=4)
    asked = 100 * kv.page_bytes
    found = {
        device: sizes._swap_pages(StageConfig(swap_memory=asked), device, kv, 400, [])
        for device in ("cpu", "cuda:1")
    }
    assert found["cpu"] == 100
    taken = 1 << (found["cuda:1"] * kv.page_bytes - 1).bit_length()
    assert asked / 2 < taken <= asked
    assert sizes._swap_pages(StageConfig(swap_memory=0), "cuda", kv, 400, []) == 0


def test_larger_gpus_hold_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row limits come from the machine's memory (printed at the start)."""
    found = []
    for gib in (141, 24, 8):
        props = type("Properties", (), {"total_memory": gib << 30})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, p=props: p)
        found.append(sizes._machine_rows("cuda"))
    assert found == [(256, 2048), (128, 1024), (64, 512)]
    assert sizes._machine_rows("cpu") == (64, 256)
