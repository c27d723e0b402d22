"""What a benchmark measures: an engine in this process, sized for residents that all fit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import torch

from rlt_core.bench.machine import free_bytes
from rlt_core.bench.prompts_first import PromptsFirst
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.timed_executor import TimedExecutor
from rlt_core.bench.traffic import Traffic, measure_traffic
from rlt_core.contract.errors import CapacityError
from rlt_core.contract.protocols import KVLayout, Strategy
from rlt_core.kv.accounting import plan_kv, request_pages
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.runtime.executor import Executor
from rlt_core.runtime.residents import Needs
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.stage.build import Parts, build_parts
from rlt_core.stage.config import StageConfig

# Positions beyond a request's end for which the host may hold pages: ticks in flight.
AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Positions of one resident: its prompt, and the most that it will ever have."""

    prompt: int
    total: int


@dataclass(slots=True)
class Subject:
    """An engine and what is known of it. first: what holds decode rows back, where that is set."""

    parts: Parts
    engine: Engine
    executor: TimedExecutor
    traffic: Traffic
    first: PromptsFirst | None

    @property
    def plan(self) -> Plan:
        """The resolved choice."""
        return self.parts.plan


@contextmanager
def opened(
    setting: Setting,
    lengths: Sequence[Lengths],
    registry: Registry,
    before_capture: Callable[[Executor], None] | None = None,
) -> Iterator[Subject]:
    """A subject with a slot and all pages for every resident; its memory is free afterwards.
    before_capture: as in stage.build.

    Raises CapacityError when the pool, or what is computed beside it, does not fit.
    """
    plan = check_setting(setting, registry)
    if setting.on_gpu:
        _free(torch.device(plan.device))  # what an earlier failure still held
    kv = _kv(setting, plan)
    num_pages = 1 + sum(
        request_pages(kv, plan.max_depth, one.prompt, one.total + AHEAD) for one in lengths
    )
    _check_memory(plan, kv, num_pages)
    try:
        subject = _build(setting, _sized(setting, lengths, num_pages), registry, before_capture)
        yield subject
        subject.engine.close()
        del subject
    except torch.OutOfMemoryError as error:
        text = str(error).partition(". ")[0]
        raise CapacityError(f"{len(lengths)} residents do not fit: {text}") from None
    _free(torch.device(plan.device))


def _sized(setting: Setting, lengths: Sequence[Lengths], num_pages: int) -> StageConfig:
    """The setting's config with room for the residents."""
    return msgspec.structs.replace(
        setting.config(),
        num_slots=len(lengths),
        max_len=max(one.total for one in lengths),
        kv_pages=num_pages,
    )


def _build(
    setting: Setting,
    config: StageConfig,
    registry: Registry,
    before_capture: Callable[[Executor], None] | None,
) -> Subject:
    def prepare(executor: Executor) -> None:
        executor.sampling = (Needs(),)  # all is greedy here; the start is the shorter for it
        if before_capture is not None:
            before_capture(executor)

    parts = build_parts(config, registry, prepare)
    executor = TimedExecutor(parts.executor)
    strategy: Strategy = load_object(parts.plan.strategy.factory)()
    first = PromptsFirst(strategy) if setting.prompts_first else None
    scheduler = Scheduler(parts.plan, parts.sizes.engine, parts.kv, first or strategy)
    engine = Engine(scheduler, executor)
    ops = parts.executor.services.ops
    traffic = measure_traffic(parts.plan, parts.kv, parts.model, ops)
    return Subject(parts, engine, executor, traffic, first)


def _kv(setting: Setting, plan: Plan) -> KVPlan:
    layout: KVLayout = load_object(plan.layout.factory)()
    return plan_kv(
        plan.shape,
        layout,
        page_size=plan.choice.kv_page_size,
        max_depth=plan.max_depth,
        element_bytes=getattr(torch, plan.dtype).itemsize,
    )


def _check_memory(plan: Plan, kv: KVPlan, num_pages: int) -> None:
    free, needed = free_bytes(torch.device(plan.device)), num_pages * kv.page_bytes
    if free is not None and needed > free:
        raise CapacityError(
            f"the residents' KV takes {needed / 2**30:,.1f} GiB, and {plan.device} has "
            f"{free / 2**30:,.1f} GiB free\nFix: fewer or shorter requests"
        )


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
