"""`rlt bench trace` and `rlt bench profile`: a short load, looked into."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlt_core.cli import bench_setting as shared
from rlt_core.cli import options
from rlt_core.cli.bench_record import Recorder
from rlt_core.cli.options import OnOff
from rlt_core.cli.output import print_columns
from rlt_core.plugins.registry import discover

if TYPE_CHECKING:
    from rlt_core.bench.setting import Setting
    from rlt_core.bench.short_load import ShortLoad
    from rlt_core.plugins.plan import Plan


class Drawn(str, Enum):
    """Where exit depths come from; bench.depths defines them."""

    FULL = "full"
    UNIFORM = "uniform"
    BIMODAL = "bimodal"
    CLUSTERED = "clustered"
    GATE = "gate"


NumRequests = Annotated[int, typer.Option("--num-requests", min=1, help="Requests of the load.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Prompt tokens of each.")]
NewTokens = Annotated[int, typer.Option("--new-tokens", min=2, help="Tokens that each generates.")]
DrawnDepths = Annotated[Drawn, typer.Option("--depths", help="Exit depths of the outputs.")]
Strategy = Annotated[str, typer.Option("--strategy", help="refill or cohort.")]


def trace(
    file: Annotated[Path, typer.Argument(help="Where the trace goes (JSON).")],
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    num_requests: NumRequests = 8,
    context: Context = 24,
    new_tokens: NewTokens = 24,
    depths: DrawnDepths = Drawn.GATE,
    strategy: Strategy = "refill",
    kv_layout: options.Layout = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    ignore_config: options.IgnoreConfig = None,
    seed: shared.Seed = 0,
) -> None:
    """Write the ticks of a short load as a trace for ui.perfetto.dev: rows coloured by depth.

    Requests join one after the other while earlier ones decode; exit depths are drawn.
    """
    values: dict[str, Any] = dict(locals())
    options.check_place("FILE", file)
    from rlt_core.bench.short_load import opened_for, run_load
    from rlt_core.bench.trace import TracedExecutor, write_trace
    from rlt_core.schedule.engine import Engine
    from rlt_core.schedule.scheduler import Scheduler

    setting, plan, load = _chosen(values)
    with opened_for(setting, load, discover()) as subject:
        run_load(subject, load)  # the first ticks of a process are not like the others
        traced = TracedExecutor(subject.parts.executor)
        parts = subject.parts
        subject.engine = Engine(Scheduler(parts.plan, parts.sizes.engine, parts.kv), traced)
        ticks, tokens = run_load(subject, load)
    spans = [traced.spans[tick] for tick in sorted(traced.spans)]
    num = write_trace(file, spans, f"{plan.model.id} on {plan.device}", num_requests)
    typer.echo(f"{file}: {ticks} ticks, {tokens} tokens, {num} events; open it at ui.perfetto.dev")


def profile(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    num_requests: NumRequests = 8,
    context: Context = 24,
    new_tokens: NewTokens = 24,
    depths: DrawnDepths = Drawn.GATE,
    strategy: Strategy = "refill",
    kv_layout: options.Layout = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    ignore_config: options.IgnoreConfig = None,
    seed: shared.Seed = 0,
    as_json: shared.JsonLines = False,
) -> None:
    """Run a short load under torch's profiler: the ten costliest operators or kernels, and the
    share of the time in which none of them ran.
    """
    values: dict[str, Any] = dict(locals())
    from rlt_core.bench.profile import profiled
    from rlt_core.bench.short_load import opened_for, run_load

    setting, plan, load = _chosen(values)
    registry = discover()
    with opened_for(setting, load, registry) as subject:
        ticks, tokens = run_load(subject, load)
        found = profiled(lambda: run_load(subject, load), on_gpu=setting.on_gpu)
    names = ("num_requests", "context", "new_tokens", "strategy", "seed")
    given = {**{name: values[name] for name in names}, "depths": depths.value}
    recorder = Recorder.of("profile", setting, plan, registry, given, as_json=as_json)
    recorder.add({"ticks": ticks, "tokens": tokens, **found.as_dict()})
    if as_json:
        return
    typer.echo(recorder.heading())
    rows = [
        (f"{one.share:.1%}", f"{one.ms:.1f}", str(one.calls), one.name) for one in found.costliest
    ]
    print_columns([("share", "ms", "calls", "kernel" if setting.on_gpu else "operator"), *rows])
    typer.echo(
        f"{ticks} ticks, {tokens} tokens in {found.seconds:.2f} s under the profiler; idle "
        f"{found.idle:.1%}"
    )


def _chosen(values: dict[str, Any]) -> tuple[Setting, Plan, ShortLoad]:
    from rlt_core.bench.depths import Full, Synthetic
    from rlt_core.bench.setting import check_length, check_setting
    from rlt_core.bench.short_load import ShortLoad

    parts = ("strategy", "kv_layout", "attention", "device", "dtype")
    setting = shared.make_setting(
        values["model"],
        values["random_weights"],
        seed=values["seed"],
        ops=values["op"],
        exact=values["exact"],
        graphs=values["graphs"],
        ignore_config=values["ignore_config"],
        exit_policy="trace",
        **{name: values[name] for name in parts},
    )
    plan = check_setting(setting, discover())
    context, new_tokens = values["context"], values["new_tokens"]
    check_length(plan, "--context", context, context + new_tokens)
    drawn, seed = values["depths"], values["seed"]
    load = ShortLoad(
        num_requests=values["num_requests"],
        context=context,
        new_tokens=new_tokens,
        depths=Full() if drawn is Drawn.FULL else Synthetic(name=drawn.value, seed=seed),
        seed=seed,
    )
    return setting, plan, load
