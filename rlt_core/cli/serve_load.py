"""The load of `rlt bench serve` from its options, and what it came to as a table."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import typer

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.engine_options import stage_config
from rlt_core.bench.answers import QUANTILES, Limits, Summary
from rlt_core.bench.depths import DISTRIBUTIONS, Depths, Full, Synthetic
from rlt_core.bench.lengths import lengths_of
from rlt_core.bench.offered import Offer
from rlt_core.bench.serve import ServePlan, ServeResult, in_process, over_http
from rlt_core.bench.setting import plan_dict
from rlt_core.cli import bench_setting as shared
from rlt_core.cli.bench_record import Recorder
from rlt_core.cli.options import OnOff, parse_ops
from rlt_core.cli.output import print_columns
from rlt_core.contract.errors import OptionError, UnknownNameError
from rlt_core.plugins.model_folder import find_model_folder
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve

TIMES = {
    "ttft": "first token",
    "tpot": "per token",
    "itl": "between tokens",
    "e2e": "whole",
}
DEFAULT_REQUESTS = 100
_PARTS = ("strategy", "kv_layout", "attention", "device", "dtype", "graphs", "page_size")
_SIZES = ("max_num_seqs", "max_num_tokens", "max_model_len", "kv_memory")
_ENGINE = ("model", "random_weights", "exit_policy", "op", "exact", "ignore_config")
# What options of an engine are where nobody gave them.
_OPEN = (None, "cpu", OnOff.ON)
_GIVEN = (
    "lengths",
    "length_scale",
    "rate",
    "num_requests",
    "duration",
    "concurrency",
    "warm_up",
    "slo_ttft",
    "slo_tpot",
    "exit_threshold",
    "depths",
    "seed",
)


def check_url(values: Mapping[str, Any]) -> None:
    """OptionError where an option of an engine is given, and a server has its own."""
    given = [name for name in _PARTS + _SIZES + _ENGINE if values[name] not in _OPEN]
    if values["url"] is not None and given:
        option = "--" + given[0].replace("_", "-")
        fix = f"Fix: leave out {option}"
        raise OptionError("--url", values["url"], f"{option} is the server's own affair", fix)


def make_plan(values: Mapping[str, Any]) -> ServePlan:
    """The load that the options mean; OptionError, UnknownNameError."""
    for name in ("rate", "length_scale", "duration", "slo_ttft", "slo_tpot"):
        value = values[name]
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise OptionError(
                f"--{name.replace('_', '-')}", value, "it must be above 0, and finite"
            )
    number, duration = values["num_requests"], values["duration"]
    offer = Offer(
        lengths=lengths_of(values["lengths"]),
        rate=values["rate"],
        num_requests=DEFAULT_REQUESTS if number is None and duration is None else number,
        duration=duration,
        scale=values["length_scale"],
        depths=_depths(values["depths"], values["seed"]),
        seed=values["seed"],
    )
    ttft, tpot = (ms and ms / 1e3 for ms in (values["slo_ttft"], values["slo_tpot"]))
    return ServePlan(
        offer=offer,
        limits=Limits(ttft=ttft, tpot=tpot),
        concurrency=values["concurrency"],
        num_warm=values["warm_up"],
        exit_threshold=values["exit_threshold"],
    )


def measured(
    values: Mapping[str, Any], plan: ServePlan, done: Callable[[], object]
) -> tuple[ServeResult, Recorder]:
    """The load's result, and what prints it."""
    registry, as_json = discover(), values["as_json"]
    given = {name: values[name] for name in _GIVEN}
    if values["url"] is not None:
        result = asyncio.run(over_http(plan, values["url"], values["api_key"], done))
        settings = {"url": values["url"], "served": result.served.name, **given}
        return result, Recorder("serve", settings, "cpu", registry, as_json=as_json)
    engine = _engine(values, plan)
    config = stage_config(**{**engine, "model": find_model_folder(engine["model"])})
    resolved = resolve(config.choice(), registry)
    # The load is open: nobody is refused for want of room in a queue.
    llm = AsyncLLM(max_waiting=1 << 30, restart=False, **engine)
    result = asyncio.run(in_process(plan, llm, done))
    sizes = {name: values[name] for name in _SIZES}
    found = plan_dict(resolved, engine["random_weights"], values["max_num_tokens"])
    settings = {**found, "strategy": resolved.strategy.id, **sizes, **given}
    return result, Recorder("serve", settings, resolved.device, registry, as_json=as_json)


def _engine(values: Mapping[str, Any], plan: ServePlan) -> dict[str, Any]:
    """The options of the engine that is started here."""
    policy = values["exit_policy"]
    if policy is None and plan.offer.depths is not None:
        policy = "trace"
    model, random_weights = values["model"], values["random_weights"]
    shared.check_weights(model, random_weights)
    return {
        "model": model if random_weights is None else random_weights,
        "random_weights": None if random_weights is None else values["seed"],
        "exit_policy": policy,
        "ops": parse_ops(values["op"]),
        "exact": values["exact"] is OnOff.ON,
        "ignore_config": values["ignore_config"] or (),
        **{name: values[name] for name in _PARTS + _SIZES},
    }


def _depths(name: str | None, seed: int) -> Depths | None:
    if name is None:
        return None
    if name != "full" and name not in DISTRIBUTIONS:
        raise UnknownNameError("distribution of depths", name, ("full", *DISTRIBUTIONS))
    return Full() if name == "full" else Synthetic(name=name, seed=seed)


def print_summary(found: Summary, limits: Limits) -> None:
    """A table of times, and lines about the rest."""
    head = ("", *(f"p{q} ms" for q in QUANTILES))
    rows = [
        (f"{text} ({name.upper()})", *(f"{value:.1f}" for value in times.values()))
        for name, text in TIMES.items()
        if (times := found.times.get(f"{name}_ms"))
    ]
    print_columns([head, *rows])
    typer.echo(
        f"{found.num_answered} of {found.num_requests} requests answered in {found.seconds:.1f} s: "
        f"{found.num_answered / found.seconds:.2f} requests/s, "
        f"{found.tokens / found.seconds:,.0f} tokens/s, "
        f"{found.prompt_tokens / found.seconds:,.0f} prompt tokens/s"
    )
    if limits.ttft is not None or limits.tpot is not None:
        typer.echo(
            f"goodput {found.num_good / found.seconds:.2f} requests/s "
            f"({found.num_good / max(1, found.num_requests):.0%} within the limits)"
        )
    if found.mean_depth is not None:
        typer.echo(f"mean exit depth {found.mean_depth:.2f}")
    for kind, num in sorted(found.errors.items()):
        typer.echo(f"{num} got no answer: {failure(found, kind)}")


def failure(found: Summary, kind: str) -> str:
    """An error's kind, and what was said of the first of it."""
    detail = found.details.get(kind)
    return f"{kind}: {detail}" if detail else kind
