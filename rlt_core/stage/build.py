"""From a StageConfig to a running engine: sizes, pool, weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import CapacityError, OptionError
from rlt_core.contract.protocols import KVLayout, WeightedModel
from rlt_core.contract.specs import AttentionSpec, OpSpec
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from rlt_core.runtime.executor import Executor
from rlt_core.runtime.self_test import self_test_exact
from rlt_core.runtime.weights import load_weights, random_weights
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.stage.capture_bar import CaptureBar
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import StageReport
from rlt_core.stage.sizes import Sizes, plan_sizes
from rlt_core.stage.stage import BuiltEngine

# How a CPU's allocator, and a GPU's driver, say that memory is short.
_NO_ROOM = ("allocate memory", "out of memory")


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
    with _short_of_memory(parts.plan, parts.sizes):
        scheduler = Scheduler(parts.plan, parts.sizes.engine, parts.kv)
    report = _report(parts.plan, parts.sizes)
    return BuiltEngine(engine=Engine(scheduler, parts.executor), report=report)


def build_parts(
    config: StageConfig,
    registry: Registry | None = None,
    before_capture: Callable[[Executor], None] | None = None,
) -> Parts:
    """Checks the whole choice, sizes the pool, loads the weights. Raises RltErrors; nothing is
    allocated before every check that needs no weights has passed. `registry` defaults to what is
    installed. before_capture: called with the executor before its ticks are captured, for
    benchmarks that change what they do."""
    plan = resolve(config.choice(), registry)
    check_device(plan.device)
    check_capability(plan)
    layout: KVLayout = load_object(plan.layout.factory)()
    dtype = getattr(torch, plan.dtype)
    kv = plan_kv(
        plan.shape,
        layout,
        page_size=plan.choice.kv_page_size,
        max_depth=plan.max_depth,
        element_bytes=dtype.itemsize,
    )
    # On a CPU sizes are checked before the weights are read; a GPU's pool takes what they leave.
    model = None
    if plan.device.startswith("cuda"):
        model = _load_model(plan, dtype, config.random_weights)
    sizes = plan_sizes(config, plan, kv)
    model = model or _load_model(plan, dtype, config.random_weights)
    weight_bytes = sum(tensor.nbytes for tensor in model.weight_table().values())
    sizes = replace(sizes, engine=replace(sizes.engine, weight_bytes=weight_bytes))
    with _short_of_memory(plan, sizes):
        executor = Executor(plan, sizes.engine, kv, model, layout)
        if before_capture is not None:
            before_capture(executor)
        _make_ready(executor, plan)
    return Parts(plan=plan, kv=kv, sizes=sizes, model=model, executor=executor)


@contextmanager
def _short_of_memory(plan: Plan, sizes: Sizes) -> Iterator[None]:
    """What torch and numpy raise where an array does not fit, as a CapacityError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        by_kind = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not by_kind and not any(words in str(error) for words in _NO_ROOM):
            raise
        engine = sizes.engine
        fewer = "--kv-memory, --max-num-seqs or --max-num-tokens"
        raise CapacityError(
            f"{plan.device} has no room for the KV pool, {engine.num_slots} requests, "
            f"{engine.num_places} prompt rows and what ticks need\n"
            f"Fix: a smaller {fewer}{', or --no-graphs' if plan.graphs else ''}"
        ) from error


def _make_ready(executor: Executor, plan: Plan) -> None:
    """Test it for what it claims, and make its graphs."""
    services = executor.services
    self_test_exact(plan, services.ops, services.attention, executor.device)
    if plan.graphs:
        with CaptureBar() as bar:
            executor.capture(bar)


def check_device(name: str) -> None:
    """Make the device the current one. OptionError for a CUDA device that torch does not find."""
    device = torch.device(name)
    if device.type != "cuda":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= found:
        reason = f"torch {torch.__version__} finds {found} CUDA devices on this machine"
        raise OptionError("--device", name, reason, "Fix: --device cpu (rlt doctor says more)")
    if device.index is not None:
        # Streams, events, graphs and kernels go to the current device.
        torch.cuda.set_device(device)


def check_capability(plan: Plan) -> None:
    """Raise OptionError where a chosen operator or backend needs a newer GPU than there is."""
    if not plan.device.startswith("cuda"):
        return
    have = torch.cuda.get_device_capability(torch.device(plan.device))
    chosen: list[AttentionSpec | OpSpec] = [plan.attention, *plan.ops.values()]
    for spec in chosen:
        if spec.capability is not None and have < spec.capability:
            needs, there = (".".join(map(str, pair)) for pair in (spec.capability, have))
            reason = f"{spec.id} needs compute capability {needs}; this GPU has {there}"
            raise OptionError("--device", plan.device, reason, "Fix: --exact off, or --device cpu")
    below = plan.attention.capability_below
    if below is not None and have >= below:
        most, there = (".".join(map(str, pair)) for pair in (below, have))
        reason = f"{plan.attention.id} needs compute capability below {most}; this GPU has {there}"
        raise OptionError("--device", plan.device, reason, "Fix: another --attention")


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
