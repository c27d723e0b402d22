"""What a strategy is shown of a tick."""

from __future__ import annotations

from rlt_core.contract.protocols import StrategyView
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.residency import Residency
from rlt_core.schedule.traffic import Traffic

_COST_TICKS = 64  # a row's cost follows the mean length, which changes slowly


class Views:
    """Makes the view of each tick; most ticks get the one before."""

    def __init__(self, plan: Plan, config: EngineConfig, kv: KVPlan, residency: Residency) -> None:
        self._config, self._residency = config, residency
        self._num_lanes, self._row_cost = max(plan.num_lanes, 1), 0.0
        self._traffic = Traffic(kv, config.weight_bytes if plan.strategy.adapts else 0)
        # What the last view was made of.
        self._seen: tuple[int, int, int, float] | None = None

    def at(self, tick: int) -> StrategyView:
        """The view of a tick that is being planned."""
        residency = self._residency
        num_free, num_waiting = len(residency.table.free), residency.waiting.num
        num_prompts = residency.num_prompts
        if tick % _COST_TICKS == 0:
            self._row_cost = self._traffic.row_cost(residency.pages.page_limit)
        seen = (num_free, num_prompts, num_waiting, self._row_cost)
        if seen != self._seen:
            self._seen = seen
            self._last = StrategyView(
                num_slots=self._config.num_slots,
                num_free_slots=num_free,
                num_decode_slots=self._config.num_slots - num_free - num_prompts,
                num_prompt_requests=num_prompts,
                num_waiting=num_waiting,
                max_tick_tokens=self._config.num_places,
                num_lanes=self._num_lanes,
                row_cost=self._row_cost,
                trust=residency.trust.value if self._num_lanes > 1 else None,
            )
        return self._last
