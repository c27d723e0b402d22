"""`rlt bench`: measurements that anyone can repeat."""

from __future__ import annotations

from typing import Annotated

import typer

from rlt_core.cli.bench_decode import decode
from rlt_core.cli.bench_depth import depth
from rlt_core.cli.bench_inside import profile, trace
from rlt_core.cli.bench_kernels import kernels
from rlt_core.cli.bench_pipeline import pipeline
from rlt_core.cli.bench_prefill import prefill
from rlt_core.cli.bench_serve import serve
from rlt_core.cli.bench_wavefront import wavefront
from rlt_core.cli.options import AsJson
from rlt_core.cli.output import print_columns, print_json

SLOTS = (16, 64, 256, 1024)


def register(app: typer.Typer) -> None:
    """Add `rlt bench` to the command line."""
    group = typer.Typer(help="Measure parts of rlt on this machine.", no_args_is_help=True)
    engine = (host, serve, decode, prefill, depth, pipeline, wavefront)
    for command in (*engine, kernels, profile, trace):
        group.command(command.__name__)(command)
    app.add_typer(group, name="bench")


def host(
    slots: Annotated[
        list[int] | None, typer.Option("--slots", min=1, help="Resident requests; repeatable.")
    ] = None,
    ticks: Annotated[int, typer.Option("--ticks", min=1, help="Ticks to time.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of depths and prompts.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time the host's work for one tick, the device's excluded.

    Every tick admits a request, ends one and sends its events to a client in another process.
    """
    from rlt_core.bench.host import measure_host

    results = [measure_host(num, ticks=ticks, seed=seed) for num in slots or SLOTS]
    if as_json:
        print_json({"unit": "microseconds a tick", "host": [r.as_dict() for r in results]})
        return
    header = (
        "slots",
        "mean us",
        "p50 us",
        "p99 us",
        "plain p50",
        "take us",
        "tokens/tick",
        "ends/tick",
    )
    rows = [
        (
            str(r.num_slots),
            f"{r.mean:.0f}",
            f"{r.p50:.0f}",
            f"{r.p99:.0f}",
            f"{r.plain_p50:.0f}",
            f"{r.take_mean:.0f}",
            f"{r.tokens_per_tick:.1f}",
            f"{r.ends_per_tick:.2f}",
        )
        for r in results
    ]
    print_columns([header, *rows])
