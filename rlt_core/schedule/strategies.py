"""Host halves of the core's strategies. Their device halves are entry rules (contract.specs.Entry).

Both admit whatever fits and list every decode slot in every tick: how rows enter and leave is
decided on the device.
"""

from __future__ import annotations

from functools import lru_cache

from rlt_core.contract.protocols import StrategyPlan, StrategyView


class Refill:
    """Continuous depth batching: a slot whose row left enters its next token at once."""

    def plan(self, view: StrategyView) -> StrategyPlan:
        """Everything that fits."""
        return _everything(view)


class Cohort:
    """The baseline: the device lets rows enter only when every row of the last round has left.

    Requests are admitted and prompts run at any time; their rows join the next round.
    """

    def plan(self, view: StrategyView) -> StrategyPlan:
        """Everything that fits."""
        return _everything(view)


def _everything(view: StrategyView) -> StrategyPlan:
    admissions = min(view.num_free_slots, view.num_waiting)
    return _plan(admissions, view.max_tick_tokens, view.num_slots)


# Most ticks get a plan that was made before; it cannot be changed.
@lru_cache(maxsize=256)
def _plan(num_admissions: int, prompt_rows: int, decode_rows: int) -> StrategyPlan:
    return StrategyPlan(
        num_admissions=num_admissions, prompt_rows=prompt_rows, decode_rows=decode_rows
    )
