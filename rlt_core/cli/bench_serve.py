"""`rlt bench serve`: times of answers under an open load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlt_core.cli import bench_setting as shared
from rlt_core.cli import options
from rlt_core.cli.bench_record import progress
from rlt_core.cli.options import OnOff
from rlt_core.contract.errors import OptionError, RltError

_UNKNOWN = 1000  # of a bar over a duration


def serve(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Ask this server; else an engine is started here.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="RLT_API_KEY", help="The key that the server wants."),
    ] = None,
    lengths: Annotated[
        str, typer.Option("--lengths", help="sharegpt, alpaca or documents.")
    ] = "sharegpt",
    length_scale: Annotated[
        float, typer.Option("--length-scale", help="Times the means of these lengths.")
    ] = 1.0,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second, on average.")] = 1.0,
    num_requests: Annotated[
        int | None, typer.Option("--num-requests", min=1, help="How many come; default: 100.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", help="Seconds in which they come, instead.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Open at once; later ones wait. Default: all."),
    ] = None,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, help="Requests that run before, unmeasured.")
    ] = 4,
    slo_ttft: Annotated[
        float | None,
        typer.Option("--slo-ttft", help="Milliseconds to the first token of a good answer."),
    ] = None,
    slo_tpot: Annotated[
        float | None,
        typer.Option("--slo-tpot", help="Milliseconds per later token of a good answer."),
    ] = None,
    exit_threshold: Annotated[
        float | None, typer.Option("--exit-threshold", help="Of the exit policy.")
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths",
            help="Exit depths are drawn: full, uniform, bimodal, clustered or gate; a server must "
            "have --exit-policy trace, which is the default here then.",
        ),
    ] = None,
    exit_policy: options.Policy = None,
    strategy: options.Strategy = None,
    kv_layout: options.Layout = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    page_size: options.PageSize = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", min=1, help="Requests resident at once.")
    ] = None,
    max_num_tokens: shared.NumRows = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=1, help="Tokens of one request.")
    ] = None,
    kv_memory: Annotated[
        int | None, typer.Option("--kv-memory", min=1, help="Bytes of the KV pool.")
    ] = None,
    ignore_config: options.IgnoreConfig = None,
    seed: shared.Seed = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the times.")
    ] = None,
    as_json: shared.JsonLines = False,
) -> None:
    """Time answers while requests come by a Poisson process, whether or not the earlier ones are
    done.

    TTFT: from when a request was due to its first token. TPOT: of each later token of a request,
    on average. ITL: between two tokens. Goodput: answers within both limits, a second. Every answer
    is greedy and has exactly the tokens that were drawn for it.
    """
    values: dict[str, Any] = dict(locals())
    if plot is not None:
        if plot.suffix != ".svg":
            fix = "Fix: a name ending in .svg"
            raise OptionError("--plot", str(plot), "plots are SVG files", fix)
        options.check_place("--plot", plot)
    from rlt_core.cli.serve_load import check_url, failure, make_plan, measured, print_summary

    check_url(values)
    plan = make_plan(values)
    with progress(plan.offer.num_requests or _UNKNOWN) as steps:
        steps.begin(f"{lengths}, {rate:g} requests a second")
        result, recorder = measured(values, plan, steps.done)
    found = result.summary
    if not found.num_answered:
        said = "\n".join(failure(found, kind) for kind in sorted(found.errors)[:3])
        raise RltError(f"none of {found.num_requests} requests was answered\n{said}")
    recorder.add({"served": result.served.name, **found.as_dict()})
    if not as_json:
        typer.echo(recorder.heading())
        print_summary(found, plan.limits)
    if plot is not None:
        from rlt_core.bench.answers import samples
        from rlt_core.bench.svg import write_plot

        whole = [one for one in result.answers if one.error is None]
        title = f"{result.served.name}: {lengths}, {rate:g} requests a second, {len(whole)} answers"
        write_plot(plot, title, samples(whole))
