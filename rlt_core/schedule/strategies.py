"""Host halves of the core's strategies. Their device halves are entry rules (contract.specs.Entry).

Both admit whatever fits and list every decode slot in every tick: how rows enter and leave is
decided on the device.
"""

from __future__ import annotations

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
    return StrategyPlan(
        num_admissions=min(view.num_free_slots, view.num_waiting),
        prompt_rows=view.max_tick_tokens,
        decode_rows=view.num_slots,
    )
