"""Host halves of the core's strategies. Their device halves are entry rules (contract.specs.Entry).

All admit whatever fits and list every decode slot in every tick: how rows enter and leave is
decided on the device.
"""

from __future__ import annotations

import math
from functools import lru_cache

from rlt_core.contract.protocols import StrategyPlan, StrategyView
from rlt_core.schedule.traffic import tick_cost

_STEPS = 32
# No guesses hold this often; a tick of one row a slot is cheaper.
_NEVER = 31 / 32


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


class Adaptive:
    """The pipeline where it pays: rows ahead are free only while a tick is bound by its weights.

    With L rows of each request a tick takes W, with one of each N (schedule.traffic); a token takes
    W (1 + (L - 1)(1 - a)) at an acceptance of a, and N L without guesses. The a at which they are
    equal is what a request must reach. Rows that nothing follows cost a tick too: where few
    requests reach it, ticks have one row of each, and nobody guesses.
    """

    def plan(self, view: StrategyView) -> StrategyPlan:
        """Everything that fits, and the acceptance at which a guess pays."""
        lanes, requests = view.num_lanes, view.num_decode_slots
        least = 0.0
        if lanes > 1:
            rows, cost = requests * lanes, view.row_cost
            gain = lanes * tick_cost(requests, requests, cost) / tick_cost(rows, rows, cost)
            least = 1 - (gain - 1) / (lanes - 1)
        # Steps, so that most ticks find a plan that was made before.
        step = math.ceil(least * _STEPS) / _STEPS
        pays = step < _NEVER and _enough_guess(view, step)
        return _everything(view, step if pays else 2.0)


def _enough_guess(view: StrategyView, least: float) -> bool:
    """Whether those who would guess win more than the rows of all others lose."""
    requests, lanes = view.num_decode_slots, view.num_lanes
    if lanes == 1 or view.trust is None or not requests:
        return True
    sure = view.trust[(view.trust > 0) & (view.trust >= least)]
    guess = min(len(sure), requests)
    wrong = 1 - float(sure.mean()) if guess else 1.0
    # Tokens in the time of a token that guesses and is always right.
    tokens = (requests - guess) / lanes + guess / (1 + (lanes - 1) * wrong)
    wide = tick_cost(requests * lanes, requests + guess * (lanes - 1), view.row_cost)
    narrow = tick_cost(requests, requests, view.row_cost)
    return tokens / wide >= requests / lanes / narrow


def _everything(view: StrategyView, least_acceptance: float = 0.0) -> StrategyPlan:
    free, waiting = view.num_free_slots, view.num_waiting
    admissions = free if free < waiting else waiting
    return _plan(admissions, view.max_tick_tokens, view.num_slots, least_acceptance)


# Most ticks get a plan that was made before; it cannot be changed.
@lru_cache(maxsize=256)
def _plan(
    num_admissions: int, prompt_rows: int, decode_rows: int, least_acceptance: float
) -> StrategyPlan:
    return StrategyPlan(
        num_admissions=num_admissions,
        prompt_rows=prompt_rows,
        decode_rows=decode_rows,
        least_acceptance=least_acceptance,
    )
