"""A plan without a model: sizes, a layout and a strategy, for work on the host half alone."""

from __future__ import annotations

from typing import cast

from rlt_core.contract.capabilities import Word
from rlt_core.contract.protocols import KVLayout
from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    ParamSpec,
    PromptModeSpec,
    StrategySpec,
    TrackSpec,
)
from rlt_core.kv.accounting import plan_kv
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Choice, ExitMode, Plan

LAYOUTS = {
    "last_exited": "rlt_core.kv.layouts:LastExited",
    "shared": "rlt_core.kv.layouts:Shared",
    "last_step": "rlt_core.kv.layouts:LastStep",
}
STRATEGIES = {
    "refill": ("rlt_core.schedule.strategies:Refill", Entry.ON_LEAVE),
    "adaptive": ("rlt_core.schedule.strategies:Adaptive", Entry.ON_GUESS),
    "cohort": ("rlt_core.schedule.strategies:Cohort", Entry.ALL_LEFT),
}
PROMPTS = {
    "chunked": PromptModeSpec(
        id="chunked", summary="", factory="rlt_core.schedule.prompts:Chunked"
    ),
    "wavefront": PromptModeSpec(
        id="wavefront",
        summary="",
        factory="rlt_core.schedule.prompts:Wavefront",
        overlaps=True,
    ),
}
CORE_TRACK = TrackSpec(name="core", num_layers=24, num_kv_heads=16, head_dim=128, per_depth=True)


def synthetic_plan(
    *,
    layout: str = "last_exited",
    strategy: str = "refill",
    prompts: str = "chunked",
    exit_mode: ExitMode = "skip",
    loops: int = 4,
    max_depth: int | None = None,
    vocab_size: int = 49152,
    params: tuple[ParamSpec, ...] = (),
    tracks: tuple[TrackSpec, ...] = (CORE_TRACK,),
) -> Plan:
    """A Plan whose model and policy cannot be built; everything the scheduler reads is there."""
    factory, entry = STRATEGIES[strategy]
    shape = ModelShape(
        loops=loops,
        max_loops=max_depth or loops,
        vocab_size=vocab_size,
        state_width=1,
        max_positions=1 << 20,
        dtype="float32",
        tracks=tracks,
        has_coda_layers=any(track.name == "coda" for track in tracks),
        eos_token_ids=(),
        config=None,
    )
    return Plan(
        choice=Choice(exit_mode=exit_mode, max_depth=max_depth),
        model=ModelSpec(
            id="synthetic",
            summary="nothing but sizes",
            model_types=(),
            architectures=(),
            reader="none:none",
            factory="none:none",
            provides=frozenset({Word.LOOPS_OVERRIDE}),
        ),
        shape=shape,
        layout=KVLayoutSpec(id=layout, summary="", factory=LAYOUTS[layout], provides=frozenset()),
        policy=ExitPolicySpec(id="synthetic", summary="", factory="none:none", params=params),
        exit_mode=exit_mode,
        strategy=StrategySpec(id=strategy, summary="", factory=factory, entry=entry),
        prompts=PROMPTS[prompts],
        attention=AttentionSpec(
            id="none", summary="", factory="none:none", devices=("cpu",), dtypes=("float32",)
        ),
        ops={},
        device="cpu",
        dtype="float32",
        max_depth=max_depth or loops,
    )


def synthetic_kv(plan: Plan, *, page_size: int) -> KVPlan:
    """How the plan's tracks lie in pages."""
    layout = cast(KVLayout, load_object(plan.layout.factory)())
    return plan_kv(
        plan.shape,
        layout,
        page_size=page_size,
        max_depth=plan.max_depth,
        element_bytes=2,
    )
