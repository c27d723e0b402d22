"""The strategy of the benchmarks: no decode row moves before every prompt is done.

Then all requests begin to decode in one tick, at their prompts' lengths, so that "context C" is
the same for each of them. From there on it is the strategy that was chosen.
"""

from __future__ import annotations

from dataclasses import replace

from rlt_core.contract.protocols import Strategy, StrategyPlan, StrategyView


class PromptsFirst:
    """Host half of a strategy, held back while there are prompts; not any more once `over`."""

    def __init__(self, inner: Strategy) -> None:
        self._inner, self.over = inner, False

    def plan(self, view: StrategyView) -> StrategyPlan:
        """The strategy's own; decode rows only when no prompt waits or runs."""
        plan = self._inner.plan(view)
        if not self.over and (view.num_waiting or view.num_prompt_requests):
            return replace(plan, decode_rows=0)
        return plan
