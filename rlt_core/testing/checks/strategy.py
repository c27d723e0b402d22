"""Checks of a strategy and of a prompt mode: their host halves, and that everybody is served."""

from __future__ import annotations

from itertools import product
from typing import Any

from rlt_core.contract.protocols import PromptView, StrategyPlan, StrategyView
from rlt_core.contract.specs import PromptModeSpec, StrategySpec
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.plugin import check_factories_load
from rlt_core.testing.checks.stand_in import StandIn
from rlt_core.testing.checks.subjects import SEED, PartSubject
from rlt_core.testing.checks.trial import Trial, expect_same, requests_of

_LENGTHS, _NUM_OUTPUTS = (9, 1, 5, 3), 4


@check("strategy", after=(check_factories_load,))
def check_strategy_plans(strategy: PartSubject[StrategySpec]) -> None:
    """plan(view) gives a StrategyPlan of whole numbers, none above what the view offers.

    If this fails: admissions are at most the free slots and the waiting requests, prompt_rows at
    most max_tick_tokens, decode_rows at most num_slots.
    """
    made = strategy.make()
    for slots, free, waiting, prompts in product((1, 8), (0, 1, 8), (0, 2, 50), (0, 1)):
        if free + prompts > slots:
            continue
        view = StrategyView(
            num_slots=slots,
            num_free_slots=free,
            num_decode_slots=slots - free - prompts,
            num_prompt_requests=prompts,
            num_waiting=waiting,
            max_tick_tokens=64,
        )
        plan = made.plan(view)
        expect(isinstance(plan, StrategyPlan), "a StrategyPlan", type(plan).__name__)
        most = {"num_admissions": min(free, waiting), "prompt_rows": 64, "decode_rows": slots}
        for field, limit in most.items():
            value = getattr(plan, field)
            fits = type(value) is int and 0 <= value <= limit
            expect(fits, f"{field} from 0 to {limit} ({view})", value)


@check("strategy", after=(check_strategy_plans,))
def check_strategy_serves(strategy: PartSubject[StrategySpec]) -> None:
    """More requests than slots all end, with the tokens that each gets alone under `refill`.

    If this fails: somebody starves (admit while slots are free, give prompts and decode rows
    their rows), or the entry rule does not exist.
    """
    _expect_served(strategy.bench.registry, strategy=strategy.name)


@check("prompt mode", after=(check_factories_load,))
def check_chunk_lengths(mode: PartSubject[PromptModeSpec]) -> None:
    """chunk_len gives 0 or more rows, within the budget and what is left of the prompt.

    If this fails: one row at most when `by_position`; never more than `budget`, `chunk_size` or
    length - next_start.
    """
    made = mode.make()
    sizes = product((1, 7, 40), (0, 5, 39), (0, 4), (0, 1, 64), (1, 16), (False, True))
    for length, start, running, budget, chunk, by_position in sizes:
        if start + running > length:
            continue
        view = PromptView(
            length=length,
            next_start=start + running,
            running_len=running,
            running_depth=min(running, 1),
            loops=3,
            by_position=by_position,
        )
        given = made.chunk_len(view, budget, chunk)
        most = min(length - view.next_start, budget, chunk, 1 if by_position else chunk)
        fits = type(given) is int and 0 <= given <= most
        expect(fits, f"0 to {most} rows ({view}, budget {budget}, chunk size {chunk})", given)


@check("prompt mode", after=(check_chunk_lengths,))
def check_prompts_served(mode: PartSubject[PromptModeSpec]) -> None:
    """Prompts of every length end, with the tokens that each gets alone in one chunk.

    If this fails: a prompt with nothing running must get a chunk when the budget allows a whole
    one.
    """
    _expect_served(mode.bench.registry, prompts=mode.name)


def _expect_served(registry: Any, **part: str) -> None:
    own = StandIn(registry)
    right, plan = own.plan(exit_policy="trace"), own.plan(exit_policy="trace", **part)
    requests = requests_of(plan, _LENGTHS, _NUM_OUTPUTS, SEED)
    alone = Trial(plan=right, model=own.model).run_alone(requests)
    for smallest in (False, True):
        trial = Trial(plan=plan, model=own.model, chunk_size=4, smallest=smallest)
        expect_same(alone, trial.run(requests), "all requests to get what each gets alone", "here")
