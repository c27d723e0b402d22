"""A plugin that adds only a strategy: `gentle` feeds prompts in small bites while others decode.

A long prompt shares its ticks with decode rows, and a tick lasts as long as all its rows take. Here
prompts get at most BITE rows of a tick in which some request decodes, and everything otherwise:
answers in progress stay smooth, new ones begin later. The tokens are the same, as with every
strategy.

Give a package this module and the entry point `gentle = "rlt_gentle"` of the group `rlt`, then
`rlt run --strategy gentle`.
"""

from __future__ import annotations

from rlt_core import Entry, StrategySpec, Word, hookimpl
from rlt_core.contract.protocols import StrategyPlan, StrategyView

BITE = 16


@hookimpl
def rlt_strategies() -> list[StrategySpec]:
    return [
        StrategySpec(
            id="gentle",
            summary="as refill, but prompts get few rows while anybody decodes",
            factory=f"{__name__}:Gentle",
            # The device's half: a slot whose row has left enters its next token at once.
            entry=Entry.ON_LEAVE,
            needs=frozenset({Word.ROW_COMPACTION, Word.SPLIT_PLANES}),
        )
    ]


class Gentle:
    """The host's half; it never names a decode row's depth."""

    def plan(self, view: StrategyView) -> StrategyPlan:
        """Admissions, prompt rows and decode rows of the next tick, at most."""
        rows = min(BITE, view.max_tick_tokens) if view.num_decode_slots else view.max_tick_tokens
        return StrategyPlan(
            num_admissions=min(view.num_free_slots, view.num_waiting),
            prompt_rows=rows,
            decode_rows=view.num_slots,
        )
