"""`rlt bench serve`: a model under an open load, in this process or behind a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.bench.answers import Answered, Limits, Summary, summary
from rlt_core.bench.in_process import InProcess
from rlt_core.bench.offered import Offer, Served, arrivals, warm_up
from rlt_core.bench.open_load import OpenLoad, Target
from rlt_core.bench.over_http import OverHttp
from rlt_core.contract.errors import OptionError, RltError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What is offered, how many may be open at once (None: any number), how many requests run
    before, unmeasured, and what makes an answer good."""

    offer: Offer
    limits: Limits
    concurrency: int | None = None
    num_warm: int = 4
    exit_threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """served: the model that answered. answers: of every request, for plots."""

    served: Served
    answers: list[Answered]
    summary: Summary


async def in_process(plan: ServePlan, llm: AsyncLLM, progress: Callable[[], object]) -> ServeResult:
    """The load on an engine that is started here, and ended."""
    async with llm:
        target = InProcess(llm, exit_threshold=plan.exit_threshold)
        return await _measure(plan, target, progress)


async def over_http(
    plan: ServePlan, url: str, key: str | None, progress: Callable[[], object]
) -> ServeResult:
    """The load on a server that runs."""
    async with OverHttp(url, key, exit_threshold=plan.exit_threshold) as target:
        return await _measure(plan, target, progress)


async def _measure(plan: ServePlan, target: Target, progress: Callable[[], object]) -> ServeResult:
    served = await target.served()
    asks = arrivals(plan.offer, served)
    if not asks:
        reason = f"nobody comes at {plan.offer.rate:g} requests a second"
        raise OptionError("--duration", plan.offer.duration, reason)
    warm = OpenLoad(target, plan.concurrency, lambda: None)
    for one in await warm.run(warm_up(plan.offer, served, plan.num_warm)):
        if one.error is not None:
            why = f"{one.error}: {one.detail}" if one.detail else one.error
            raise RltError(f"a request of the warm-up got no answer: {why}")
    load = OpenLoad(target, plan.concurrency, progress)
    answers = await load.run(asks)
    return ServeResult(
        served=served, answers=answers, summary=summary(answers, plan.limits, load.late_s)
    )
