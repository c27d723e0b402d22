"""The sizes of a stage: slots, rows, pages, lengths; as asked for, or from what is free."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from rlt_core.contract.errors import CapacityError, OptionError
from rlt_core.contract.protocols import ExitPolicy
from rlt_core.kv.accounting import (
    Capacity,
    capacity,
    check_num_pages,
    num_pages_for_budget,
    page_rows,
)
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.prefix import cached_text
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.mixed_inputs import NUM_ENDS
from rlt_core.runtime.options import room_places
from rlt_core.stage.config import StageConfig

MAX_LEN = 4096
# On a CPU: the pool takes a quarter of the free memory and at most so much.
KV_BYTES = 2 << 30
# On a GPU: what is left free of its memory, for what ticks hold for a while.
RESERVE_BYTES = 2 << 30
KV_SHARE = 0.92
# Of the host, for pages of preempted requests, at most.
SWAP_BYTES = 4 << 30
# (total bytes of a GPU from which they hold, resident requests, prompt rows of a tick)
GPU_ROWS = ((64 << 30, 256, 2048), (20 << 30, 128, 1024), (0, 64, 512))
CPU_ROWS = (64, 256)
# Bytes that sampling with every filter takes at its peak, for each byte of logits: 18.5 measured on
# a CPU, and up to 6 more for what a GPU's sort works in (read, not measured).
SAMPLING_PEAK = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a stage and the sentences on those that were picked."""

    engine: EngineConfig
    capacity: Capacity
    notes: tuple[str, ...]


def plan_sizes(config: StageConfig, plan: Plan, kv: KVPlan) -> Sizes:
    """Fills in what the user left open; weight_bytes is left to who has the weights. Raises
    OptionError and CapacityError."""
    if config.ticks_in_flight not in (1, 2):
        raise OptionError("ticks_in_flight", config.ticks_in_flight, "it is 1 or 2")
    notes = list(plan.notes)
    most_slots, most_rows = _machine_rows(plan.device)
    num_slots = config.num_slots or most_slots
    num_rows = config.num_rows or config.chunk_size or most_rows
    num_pages = _num_pages(config, plan, kv, (num_slots, num_rows), notes)
    room = capacity(kv, num_pages, plan.max_depth)
    chunk_size = config.chunk_size or num_rows
    if chunk_size > num_rows:
        raise OptionError(
            "--chunk-size", chunk_size, f"is above the {num_rows} prompt rows of --max-num-tokens"
        )
    engine = EngineConfig(
        num_slots=num_slots,
        num_places=num_rows,
        chunk_size=chunk_size,
        page_size=kv.page_size,
        num_pages=num_pages,
        max_len=_max_len(config, plan, room, notes),
        max_depth=plan.max_depth,
        min_leave=_min_leave(plan, num_slots),
        ticks_in_flight=config.ticks_in_flight,
        prefix_cache=config.prefix_cache,
        swap_pages=_swap_pages(config, plan.device, kv, num_pages, notes),
        debug=config.debug,
        keep_logits=config.keep_logits,
    )
    notes.append(
        f"{num_slots} requests at once, {num_rows} prompt rows in progress, chunks of {chunk_size}"
    )
    notes.append(str(room))
    notes.append(
        f"prefix cache: {cached_text(kv.tables[min(plan.shape.loops, plan.max_depth) - 1])}"
        if config.prefix_cache
        else "prefix cache: off"
    )
    return Sizes(engine=engine, capacity=room, notes=tuple(notes))


def _machine_rows(device: str) -> tuple[int, int]:
    """(resident requests, prompt rows) where the user names none."""
    if not device.startswith("cuda"):
        return CPU_ROWS
    total = torch.cuda.get_device_properties(torch.device(device)).total_memory
    return next((slots, rows) for least, slots, rows in GPU_ROWS if total >= least)


def _kept_bytes(plan: Plan, num_slots: int, num_rows: int, max_len: int) -> int:
    """What a stage keeps beside weights and pool where ticks are captured: counts of tokens by
    slot, what sampling works in, the policy's state, and the tables of the model's options."""
    shape = plan.shape
    sampled = num_slots + 1 + NUM_ENDS  # rows of the largest captured tick
    vocabulary = (5 * (num_slots + 1) + SAMPLING_PEAK * 4 * sampled) * shape.vocab_size
    homes = num_slots + 1 + num_rows + (num_slots + 1) * plan.num_lanes
    policy: ExitPolicy = load_object(plan.policy.factory)()
    state: int = sum(
        math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize
        for spec in policy.state(shape.vocab_size, shape.state_width)
    )
    item: int = getattr(torch, plan.dtype).itemsize
    tables = (room_places(width, max_len, item) for width in shape.table_widths.values())
    sizes = zip(tables, shape.table_widths.values(), strict=True)
    options = sum(places * width * max_len * item for places, width in sizes)
    return vocabulary + homes * state + options


def _num_pages(
    config: StageConfig, plan: Plan, kv: KVPlan, counts: tuple[int, int], notes: list[str]
) -> int:
    """counts: slots and prompt rows."""
    free = _free_memory(plan.device)
    if config.kv_pages is not None:
        check_num_pages(kv, config.kv_pages)
        _check_room("--kv-pages", config.kv_pages, config.kv_pages * kv.page_bytes, free)
        return config.kv_pages
    if config.kv_memory is not None:
        _check_room("--kv-memory", config.kv_memory, config.kv_memory, free)
        return num_pages_for_budget(kv, config.kv_memory)
    budget = min(KV_BYTES, free // 4)
    if plan.device.startswith("cuda"):
        kept = _kept_bytes(plan, *counts, min(MAX_LEN, plan.shape.max_positions))
        budget = max(0, int(free * KV_SHARE) - RESERVE_BYTES - kept)
    notes.append(f"KV memory: {budget / 2**20:,.0f} MiB, of {free / 2**20:,.0f} MiB free")
    # No more pages than all slots can ever fill: a small model leaves the memory alone.
    longest = config.max_len or min(MAX_LEN, plan.shape.max_positions)
    rows = len(page_rows(kv, kv.max_depth, "prompt"))
    most = 1 + counts[0] * rows * -(-longest // kv.page_size)
    return min(most, num_pages_for_budget(kv, budget))


def _check_room(option: str, asked: int, num_bytes: int, free: int) -> None:
    if num_bytes > free:
        raise CapacityError(
            f"{option} {asked}: {num_bytes / 2**20:,.0f} MiB of KV; {free / 2**20:,.0f} MiB free"
            f"\nFix: a smaller {option}, or none: the pool then takes what is there"
        )


def _swap_pages(
    config: StageConfig, device: str, kv: KVPlan, num_pages: int, notes: list[str]
) -> int:
    """Host pages for preempted requests: asked for, or a quarter of the pool, as far as an eighth
    of the free memory of the host and SWAP_BYTES allow. It is pinned for a GPU, hence the limits:
    nobody else can use it."""
    budget = config.swap_memory
    if budget is None:
        share = min(num_pages * kv.page_bytes // 4, SWAP_BYTES)
        budget = min(share, _free_memory("cpu") // 8)
    if device.startswith("cuda") and budget:
        # torch pins powers of two: more than this would take up to twice what may be taken.
        budget = 1 << (budget.bit_length() - 1)
    swap_pages = min(budget // kv.page_bytes, 4 * num_pages)
    size = f"{swap_pages * kv.page_bytes / 2**20:,.1f} MiB of host memory"
    notes.append(
        f"preempted requests: {size}, then computed again"
        if swap_pages
        else "preempted requests are computed again"
    )
    return swap_pages


def _max_len(config: StageConfig, plan: Plan, room: Capacity, notes: list[str]) -> int:
    """Positions of one request: asked for, or what model and pool hold, at most 4096."""
    trained = plan.shape.max_positions
    # The last output needs no page.
    holds = max(room.prompt_tokens, room.generated_tokens) + 1
    if config.max_len is not None:
        if config.max_len > trained:
            raise OptionError(
                "--max-model-len", config.max_len, f"the model has {trained} positions"
            )
        if config.max_len > holds:
            raise CapacityError(
                f"--max-model-len {config.max_len}: the pool holds {holds} tokens at "
                f"{plan.max_depth} loops\nFix: a smaller --max-model-len or more --kv-memory"
            )
        return config.max_len
    picked = min(trained, holds, MAX_LEN)
    notes.append(f"a request may have {picked} tokens (model {trained:,}, pool {holds:,})")
    return picked


def _min_leave(plan: Plan, num_slots: int) -> int:
    return max(1, int(plan.shape.min_leave_fraction * num_slots))


def _free_memory(device: str) -> int:
    """Bytes of the device's memory, or of RAM that can be had without swapping."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # which may hold what an engine had that has ended
        return torch.cuda.mem_get_info(torch.device(device))[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # no Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
