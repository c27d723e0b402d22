"""Models and in-process engines for tests, by name and by one flat configuration."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from docs.examples import rlt_no_fill
from rlt_core.contract.protocols import KVLayout, WeightedModel
from rlt_core.contract.specs import ModelShape
from rlt_core.kv.accounting import page_rows, plan_kv
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.discovery import Candidate
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Choice, ExitMode, Plan, Source
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve
from rlt_core.runtime.batch import F32
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.executor import Executor
from rlt_core.runtime.weights import load_weights
from rlt_core.schedule.engine import Engine
from rlt_core.schedule.request import ABORT, ERROR, RUNNING, EngineRequest, Events
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.testing.tiny import SPECS, VARIANTS
from rlt_core.testing.tiny_model import make_tiny
from rlt_core.testing.tiny_plugin import registry_with_tiny

# Where the engines under test compute; references stay on the CPU. `make test-gpu` sets it.
DEVICE = os.environ.get("RLT_TEST_DEVICE", "cpu")
GOLDEN = Path(__file__).parent / "golden"
MODELS = ("tiny_a", "tiny_b", "ouro_a", "ouro_b")
MAX_LEN = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What decides the tokens (first line) and what must not."""

    model: str = "tiny_a"
    layout: str = "last_exited"
    mode: ExitMode = "skip"
    policy: str = "gate"
    dtype: str = "float32"
    strategy: str = "refill"
    prompts: str = "chunked"
    draft_depth: int | None = None
    chunk_size: int = 64
    page_size: int = 16
    num_slots: int = 4
    num_places: int = 64
    num_pages: int | None = None  # None: as many as all slots can ever fill
    min_leave: int = 1
    leave_places: int = 0
    ticks_in_flight: int = 2
    max_len: int = MAX_LEN
    graphs: bool = False
    prefix_cache: bool = True
    swap_pages: int = 0


@lru_cache(maxsize=1)
def registry() -> Registry:
    """What is installed, the tiny models, and the layout of docs/examples."""
    source = Source(plugin="no_fill", distribution="rlt-no-fill", version="")
    return registry_with_tiny(Candidate(source=source, load=lambda: rlt_no_fill))


@lru_cache(maxsize=16)
def load_model(
    name: str, dtype: str = "float32", device: str = "cpu"
) -> tuple[ModelShape, WeightedModel]:
    """A tiny model or golden folder by name, "tiny_a" or "ouro_b"; weights stored in float32."""
    kind, _, variant = name.partition("_")
    if kind == "tiny":
        return make_tiny(variant, dtype=getattr(torch, dtype), device=device)
    spec = next(spec for spec in registry().specs if spec.id == kind)
    folder = GOLDEN / name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = load_object(cast(Any, spec).reader)(config, str(folder), frozenset())
    model = load_object(spec.factory)(
        shape, device=torch.device(device), dtype=getattr(torch, dtype)
    )
    load_weights(model, folder)
    return shape, model


def deepest(shape: ModelShape) -> int:
    """The most loops a test's engine runs: a little beyond the trained number where it may."""
    return min(shape.max_loops, shape.loops + 2)


@lru_cache(maxsize=256)
def plan_of(setup: Setup) -> Plan:
    """The resolved plan; ConflictError for a pair that cannot work."""
    shape, _ = load_model(setup.model, setup.dtype)
    choice = Choice(
        model=_model_id(setup.model),
        kv_layout=setup.layout,
        exit_policy=setup.policy,
        exit_mode=setup.mode,
        strategy=setup.strategy,
        prompts=setup.prompts,
        draft_depth=setup.draft_depth,
        dtype=setup.dtype,
        device=DEVICE,
        graphs=setup.graphs,
        page_size=setup.page_size,
        max_depth=deepest(shape),
    )
    return resolve(choice, registry(), shape=shape)


def _model_id(name: str) -> str:
    kind, _, variant = name.partition("_")
    if kind != "tiny":
        return kind
    kind = VARIANTS[variant]["model_type"]
    return next(spec.id for spec in SPECS.values() if kind in spec.model_types)


@dataclass(slots=True)
class Built:
    """An engine and its parts, for tests that look inside."""

    setup: Setup
    plan: Plan
    kv: KVPlan
    config: EngineConfig
    executor: Executor
    scheduler: Scheduler
    engine: Engine


def build(setup: Setup, model: WeightedModel | None = None, plan: Plan | None = None) -> Built:
    """An engine in this process; debug (poisoned, shuffled pages) is on, logits are kept."""
    plan = plan or plan_of(setup)
    layout: KVLayout = load_object(plan.layout.factory)()
    kv = plan_kv(
        plan.shape,
        layout,
        page_size=setup.page_size,
        max_depth=plan.max_depth,
        element_bytes=getattr(torch, plan.dtype).itemsize,
    )
    config = EngineConfig(
        num_slots=setup.num_slots,
        num_places=setup.num_places,
        chunk_size=setup.chunk_size,
        page_size=setup.page_size,
        num_pages=setup.num_pages or all_pages(kv, setup),
        max_len=setup.max_len,
        max_depth=plan.max_depth,
        min_leave=setup.min_leave,
        leave_places=setup.leave_places,
        ticks_in_flight=setup.ticks_in_flight,
        prefix_cache=setup.prefix_cache,
        swap_pages=setup.swap_pages,
        debug=True,
        keep_logits=True,
    )
    model = model or load_model(setup.model, setup.dtype, DEVICE)[1]
    executor = Executor(plan, config, kv, model, layout)
    if plan.graphs:
        executor.capture()
    scheduler = Scheduler(plan, config, kv)
    engine = Engine(scheduler, executor)
    return Built(setup, plan, kv, config, executor, scheduler, engine)


def all_pages(kv: KVPlan, setup: Setup) -> int:
    """Pages with which no slot ever waits, the sentinel included."""
    rows = len(page_rows(kv, kv.max_depth, "prompt"))
    return 1 + setup.num_slots * rows * -(-setup.max_len // setup.page_size)


@dataclass(slots=True)
class Answer:
    """What one request got: tokens, depths, logits [n, V], and its finish code."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    logits: list[F32] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: int = RUNNING
    scored: dict[int, tuple[int, float, F32]] = field(default_factory=dict)
    error: str = ""


def collect(answers: dict[int, Answer], events: Events) -> None:
    """Add a tick's events to the answers, made where they are missing."""
    for i, request_id in enumerate(events.request_id.tolist()):
        answer = answers.setdefault(request_id, Answer())
        answer.finish = int(events.finish[i])
        if answer.finish == ERROR:
            answer.error = events.errors.get(request_id, "")
        if events.token[i] < 0:
            continue
        answer.tokens.append(int(events.token[i]))
        answer.depths.append(int(events.depth[i]))
        answer.logprobs.append(float(events.logprob[i]))
        assert events.logits is not None, "the engine keeps no logits"
        answer.logits.append(events.logits[i])
    for i, request_id in enumerate(events.score_request_id.tolist()):
        answer = answers.setdefault(request_id, Answer())
        assert events.score_logits is not None, "the engine keeps no logits"
        found = (int(events.score_depth[i]), float(events.score_logprob[i]), events.score_logits[i])
        answer.scored[int(events.score_position[i])] = found


def run_alone(built: Built, request: EngineRequest) -> Answer:
    """The request's answer with nothing else in the engine."""
    return run_together(built, [request])[request.request_id]


def run_together(built: Built, requests: list[EngineRequest]) -> dict[int, Answer]:
    """All answers of requests that arrive at once."""
    answers: dict[int, Answer] = {}
    for request in requests:
        built.engine.add(request)
    while built.engine.has_work:
        collect(answers, built.engine.step())
    return answers


def greedy(
    request_id: int, prompt: list[int], num_outputs: int, setup: Setup, **fields: Any
) -> EngineRequest:
    """A greedy request without stop ids, at the model's own depth unless `fields` say more."""
    loops = fields.pop("loops", load_model(setup.model, setup.dtype)[0].loops)
    fields.setdefault("max_loops", loops)
    return EngineRequest(
        request_id=request_id,
        prompt=np.array(prompt, np.int64),
        max_tokens=num_outputs,
        loops=loops,
        **fields,
    )


__all__ = ["ABORT", "Answer", "Built", "Setup", "build", "collect", "greedy", "run_alone"]
