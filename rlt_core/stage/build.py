"""From a StageConfig to a running engine: sizes, pool, weights."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import CapacityError, OptionError
from rlt_core.contract.protocols import KVLayout, WeightedModel
from rlt_core.kv.accounting import (
    Capacity,
    capacity,
    check_num_pages,
    num_pages_for_budget,
    page_rows,
    plan_kv,
)
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from rlt_core.runtime.batch import EngineConfig
from rlt_core.runtime.executor import Executor
from rlt_core.runtime.self_test import self_test_exact
from rlt_core.runtime.weights import load_weights, random_weights
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import StageReport
from rlt_core.stage.stage import BuiltEngine

NUM_SLOTS = 64
NUM_ROWS = 256
MAX_LEN = 4096
KV_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a stage and the sentences on those that were picked."""

    engine: EngineConfig
    capacity: Capacity
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of, for those who look inside (benchmarks)."""

    plan: Plan
    kv: KVPlan
    sizes: Sizes
    model: WeightedModel
    executor: Executor


def build_engine(config: StageConfig, registry: Registry | None = None) -> BuiltEngine:
    """A running engine; see `build_parts`."""
    parts = build_parts(config, registry)
    scheduler = Scheduler(parts.plan, parts.sizes.engine, parts.kv)
    report = _report(parts.plan, parts.sizes)
    return BuiltEngine(engine=Engine(scheduler, parts.executor), report=report)


def build_parts(config: StageConfig, registry: Registry | None = None) -> Parts:
    """Checks the whole choice, sizes the pool, loads the weights. Raises RltErrors; nothing is
    allocated before every check that needs no weights has passed. `registry` defaults to what is
    installed."""
    plan = resolve(config.choice(), registry)
    check_device(plan.device)
    layout: KVLayout = load_object(plan.layout.factory)()
    dtype = getattr(torch, plan.dtype)
    kv = plan_kv(
        plan.shape,
        layout,
        page_size=config.page_size,
        max_depth=plan.max_depth,
        element_bytes=dtype.itemsize,
    )
    sizes = plan_sizes(config, plan, kv)
    model = _load_model(plan, dtype, config.random_weights)
    executor = Executor(plan, sizes.engine, kv, model, layout)
    services = executor.services
    self_test_exact(plan, services.ops, services.attention, executor.device)
    if plan.graphs:
        executor.capture()
    return Parts(plan=plan, kv=kv, sizes=sizes, model=model, executor=executor)


def check_device(name: str) -> None:
    """Raise OptionError for a CUDA device that torch does not find here."""
    device = torch.device(name)
    if device.type != "cuda":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= found:
        reason = f"torch {torch.__version__} finds {found} CUDA devices on this machine"
        raise OptionError("--device", name, reason, "Fix: --device cpu (rlt doctor says more)")


def plan_sizes(config: StageConfig, plan: Plan, kv: KVPlan) -> Sizes:
    """Fills in what the user left open. Raises OptionError and CapacityError."""
    notes = list(plan.notes)
    num_pages = _num_pages(config, plan, kv, notes)
    room = capacity(kv, num_pages, plan.max_depth)
    num_rows = config.num_rows or config.chunk_size or NUM_ROWS
    chunk_size = config.chunk_size or num_rows
    if chunk_size > num_rows:
        raise OptionError(
            "--chunk-size", chunk_size, f"is above the {num_rows} prompt rows of --max-num-tokens"
        )
    engine = EngineConfig(
        num_slots=config.num_slots or NUM_SLOTS,
        num_places=num_rows,
        chunk_size=chunk_size,
        page_size=config.page_size,
        num_pages=num_pages,
        max_len=_max_len(config, plan, room, notes),
        max_depth=plan.max_depth,
        min_leave=_min_leave(plan, config.num_slots or NUM_SLOTS),
        ticks_in_flight=config.ticks_in_flight,
        debug=config.debug,
        keep_logits=config.keep_logits,
    )
    notes.append(str(room))
    return Sizes(engine=engine, capacity=room, notes=tuple(notes))


def _num_pages(config: StageConfig, plan: Plan, kv: KVPlan, notes: list[str]) -> int:
    if config.kv_pages is not None:
        check_num_pages(kv, config.kv_pages)
        return config.kv_pages
    if config.kv_memory is not None:
        return num_pages_for_budget(kv, config.kv_memory)
    free = _free_memory()
    budget = min(KV_BYTES, free // 4)
    notes.append(f"KV memory: {budget / 2**20:,.0f} MiB, of {free / 2**20:,.0f} MiB free")
    # No more pages than all slots can ever fill: a small model leaves the memory alone.
    longest = config.max_len or min(MAX_LEN, plan.shape.max_positions)
    rows = len(page_rows(kv, kv.max_depth, "prompt"))
    most = 1 + (config.num_slots or NUM_SLOTS) * rows * -(-longest // kv.page_size)
    return min(most, num_pages_for_budget(kv, budget))


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


def _load_model(plan: Plan, dtype: torch.dtype, seed: int | None) -> WeightedModel:
    path = plan.choice.model_path
    if path is None:
        raise OptionError("model", None, "a stage needs a model folder")
    model: WeightedModel = load_object(plan.model.factory)(
        plan.shape, device=torch.device(plan.device), dtype=dtype
    )
    if seed is None:
        load_weights(model, path)
    else:
        random_weights(model, seed)
    return model


def _report(plan: Plan, sizes: Sizes) -> StageReport:
    engine = sizes.engine
    return StageReport(
        model=plan.model.id,
        vocab_size=plan.shape.vocab_size,
        loops=plan.shape.loops,
        max_depth=plan.max_depth,
        max_len=engine.max_len,
        token_capacity=min(sizes.capacity.prompt_tokens, sizes.capacity.generated_tokens),
        num_slots=engine.num_slots,
        num_pages=engine.num_pages,
        page_size=engine.page_size,
        max_logprobs=engine.max_logprobs,
        eos_token_ids=plan.shape.eos_token_ids,
        exit_policy=plan.policy.id,
        exit_mode=plan.exit_mode,
        exit_params=plan.policy.params,
        exit_defaults=dict(plan.exit_defaults),
        model_options=plan.model.options,
        table_widths=dict(plan.shape.table_widths),
        loops_override=Word.LOOPS_OVERRIDE in plan.model.provides,
        kv_layout=plan.layout.id,
        strategy=plan.strategy.id,
        prompts=plan.prompts.id,
        device=plan.device,
        dtype=plan.dtype,
        notes=sizes.notes,
    )


def _free_memory() -> int:
    """Bytes of RAM that can be had without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # no Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
