"""Strategies of the benchmarks: no decode row moves before every prompt is done.

Then all requests begin to decode in one tick, at their prompts' lengths, so that "context C" is
the same for each of them. From there on these are the core's strategies: same entry rule, same
plan. Registered through the plugin system for the benchmarks alone.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from rlt_core.contract import StrategySpec, hookimpl
from rlt_core.contract.protocols import StrategyPlan, StrategyView
from rlt_core.plugins import core
from rlt_core.plugins.discovery import Candidate, core_candidate, load_plugin
from rlt_core.plugins.plan import Source
from rlt_core.plugins.registry import Registry
from rlt_core.schedule.strategies import Refill

STRATEGIES = ("refill", "cohort")
_SUFFIX = "_after_prompts"


class AfterPrompts:
    """Host half of both: the core's two are alike in it."""

    def __init__(self) -> None:
        self._inner = Refill()

    def plan(self, view: StrategyView) -> StrategyPlan:
        """Everything that fits; decode rows only when no prompt waits or runs."""
        plan = self._inner.plan(view)
        if view.num_waiting or view.num_prompt_requests:
            return replace(plan, decode_rows=0)
        return plan


def after_prompts(strategy: str) -> str:
    """The id of the benchmarks' variant."""
    return f"{strategy}{_SUFFIX}"


@hookimpl
def rlt_strategies() -> list[StrategySpec]:
    """The core's two, held back while there are prompts."""
    return [
        replace(spec, id=after_prompts(spec.id), factory=f"{__name__}:AfterPrompts")
        for spec in core.rlt_strategies()
        if spec.id in STRATEGIES
    ]


def with_bench(registry: Registry) -> Registry:
    """The registry, and the strategies above."""
    version = core_candidate().source.version
    source = Source(plugin="bench", distribution="rlt-core", version=version)
    candidate = Candidate(source=source, load=lambda: import_module(__name__))
    return Registry((*registry.plugins, load_plugin(candidate, frozenset())))
