"""A route that says what is served, within which bounds, and what it is doing now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from rlt_core.contract.specs import ParamSpec
from rlt_core.schedule.stats import EngineStats
from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import responses
from rlt_core.stage.messages import StageReport

router = APIRouter(tags=["models"])
PATH = "/v1/engine"


class ExitParam(BaseModel):
    """A number of the exit policy that requests may set; bounds are inclusive, null where there
    is none. default: what holds for a request without it; null: every request must set it."""

    name: str
    summary: str
    whole: bool
    minimum: float | None
    maximum: float | None
    default: float | None


class EngineFacts(BaseModel):
    """What does not change while it serves.

    loops: the model's own depth D; max_depth: the most that a request may ask for as `loops`, where
    loops_override says that it may. max_tokens: of one answer, max_model_len: of prompt and answer.
    has_chat: whether there is a chat template.
    """

    family: str
    loops: int
    max_depth: int
    loops_override: bool
    exit_policy: str
    exit_mode: str
    exit_params: list[ExitParam]
    max_model_len: int
    max_tokens: int
    has_chat: bool
    device: str
    dtype: str


class EngineState(BaseModel):
    """Gauges of this moment, and counters since the stage began: ticks, row_loops[d - 1]: loops of
    rows at depth d, outputs[d - 1]: outputs read at depth d."""

    num_slots: int
    slots_used: int
    num_waiting: int
    num_prompts: int
    pages_total: int
    pages_used: int
    pages_cached: int
    ticks: int
    row_loops: list[int]
    outputs: list[int]


class Engine(BaseModel):
    """facts is null before the model is loaded; reason says why it is not ready."""

    model: str
    ready: bool
    reason: str
    restarts: int
    facts: EngineFacts | None
    state: EngineState


@router.get(PATH, responses=responses())
async def engine(context: Annotated[ServerContext, Depends(context_of)]) -> Engine:
    """The engine, its bounds and its state. May be asked every second: a 200 is not logged."""
    llm = context.llm
    stats = await llm.stats()
    report = llm.known_report
    return Engine(
        model=context.names[0],
        ready=llm.ready,
        reason=llm.reason,
        restarts=llm.num_restarts,
        facts=None if report is None else _facts(context, report),
        state=_state(stats),
    )


def _facts(context: ServerContext, report: StageReport) -> EngineFacts:
    limit = context.settings.max_tokens
    return EngineFacts(
        family=report.model,
        loops=report.loops,
        max_depth=report.max_depth,
        loops_override=report.loops_override,
        exit_policy=report.exit_policy,
        exit_mode=report.exit_mode,
        # "depths" is one number a token (trace), which is no setting.
        exit_params=[_param(p, report) for p in report.exit_params if p.kind in ("float", "int")],
        max_model_len=report.max_len,
        max_tokens=report.max_len if limit is None else min(limit, report.max_len),
        has_chat=context.has_chat,
        device=report.device,
        dtype=report.dtype,
    )


def _param(spec: ParamSpec, report: StageReport) -> ExitParam:
    default = report.exit_defaults.get(spec.name, spec.default)
    return ExitParam(
        name=spec.name,
        summary=spec.summary,
        whole=spec.kind == "int",
        minimum=spec.minimum,
        maximum=spec.maximum,
        default=None if default is None else float(default),
    )


def _state(stats: EngineStats) -> EngineState:
    return EngineState(**{name: getattr(stats, name) for name in EngineState.model_fields})
