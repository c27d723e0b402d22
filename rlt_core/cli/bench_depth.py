"""`rlt bench depth`: what early exits save, against what they can save."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from rlt_core.cli import bench_setting as shared
from rlt_core.cli import options
from rlt_core.cli.bench_record import Recorder, progress, spread
from rlt_core.cli.options import OnOff
from rlt_core.cli.output import print_columns
from rlt_core.contract.errors import CapacityError, OptionError
from rlt_core.plugins.registry import discover

if TYPE_CHECKING:
    from rlt_core.bench.depth import DepthResult, NoExitResult
    from rlt_core.bench.depths import Depths

WIDTHS, CONTEXTS = (16, 64, 128, 256), (128, 1024)
CPU_WIDTHS, CPU_CONTEXTS = (4, 16), (64,)


class Distribution(str, Enum):
    """The synthetic ones; bench.depths defines them."""

    UNIFORM = "uniform"
    BIMODAL = "bimodal"
    CLUSTERED = "clustered"
    GATE = "gate"


HEAD = (
    "context",
    "width",
    "depths",
    "mean",
    "fixed ms",
    "cohort ms",
    "refill ms",
    "boundary",
    "bound",
    "refill",
    "of bound",
    "cohort",
)
NO_EXIT_HEAD = ("context", "width", "cohort ms", "refill ms", "over", "refill spread ms", "over")


def depth(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=1, help="Prompt tokens; repeatable."),
    ] = None,
    width: Annotated[
        list[int] | None,
        typer.Option("--width", min=1, help="Resident requests; repeatable."),
    ] = None,
    distribution: Annotated[
        list[Distribution] | None,
        typer.Option(
            "--distribution", help="Synthetic depths; repeatable; default: all, without --depths."
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths", metavar="FILE", help="Recorded depths: JSON lines, a list per request."
        ),
    ] = None,
    no_exit: Annotated[
        bool, typer.Option("--no-exit", help="Only refill against cohort at full depth.")
    ] = False,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=1, help="Tokens of a request in a window.")
    ] = 64,
    kv_layout: options.Layout = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    page_size: options.PageSize = None,
    max_num_tokens: shared.NumRows = None,
    ignore_config: options.IgnoreConfig = None,
    repeat: shared.Repeat = 3,
    seed: shared.Seed = 0,
    as_json: shared.JsonLines = False,
) -> None:
    """Replay exit depths and compare with fixed depth and with the work bound.

    The bound is (boundary + loops) / (boundary + mean depth), in loops, with the boundary measured.
    Default grid: contexts 128 and 1024 with widths 16, 64, 128, 256; on a CPU context 64 with 4
    and 16. What does not fit the machine's memory is skipped, and said.
    """
    from rlt_core.bench.depth import DepthBench, num_windows
    from rlt_core.bench.depth_runs import Load
    from rlt_core.bench.setting import check_length, check_setting

    if no_exit and (depths is not None or distribution):
        ignored = "--depths" if depths is not None else "--distribution"
        value = depths or ", ".join(one.value for one in distribution or ())
        fix = f"Fix: leave out {ignored}, or --no-exit"
        raise OptionError(ignored, value, "--no-exit runs no exits", fix)
    setting = shared.make_setting(
        model,
        random_weights,
        seed=seed,
        ops=op,
        exact=exact,
        graphs=graphs,
        ignore_config=ignore_config,
        exit_policy="trace",
        kv_layout=kv_layout,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_rows=max_num_tokens,
    )
    registry = discover()
    plan = check_setting(setting, registry)
    loads = [
        Load(context=c, width=w, new_tokens=new_tokens, seed=seed)
        for c, w in grid(context, width, on_gpu=setting.on_gpu)
    ]
    sources = [] if no_exit else _sources(distribution, depths, plan.shape.loops, seed)
    windows = num_windows(plan, len(sources), repeat, no_exit=no_exit)
    name, given = "no-exit" if no_exit else "depth", {"repeat": repeat, "seed": seed}
    recorder = Recorder.of(name, setting, plan, registry, given, as_json=as_json)
    results: list[DepthResult | NoExitResult] = []
    with progress(windows * len(loads)) as steps:
        bench = DepthBench(setting, plan, registry, repeat=repeat, told=steps.done)
        for load in loads:
            check_length(plan, "--context", load.context, bench.longest(load, sources))
        for load in loads:
            steps.begin(f"context {load.context}, {load.width} requests")
            try:
                found = [bench.measure_no_exit(load)] if no_exit else bench.measure(load, sources)
            except CapacityError as error:
                recorder.skip({"context": load.context, "width": load.width}, error)
                steps.done(windows)
                continue
            for result in found:
                recorder.add(result.as_dict())
            results += found
    recorder.end(len(results))
    if not as_json:
        typer.echo(recorder.heading())
        print_columns(table(results))


def grid(
    contexts: Sequence[int] | None, widths: Sequence[int] | None, *, on_gpu: bool
) -> list[tuple[int, int]]:
    """(context, width) of every load; what is not named is the machine's default."""
    contexts = contexts or (CONTEXTS if on_gpu else CPU_CONTEXTS)
    return list(product(contexts, widths or (WIDTHS if on_gpu else CPU_WIDTHS)))


def _sources(
    named: Sequence[Distribution] | None, file: str | None, loops: int, seed: int
) -> list[Depths]:
    from rlt_core.bench.depths import Recorded, Synthetic

    names = named or (() if file else tuple(Distribution))
    found: list[Depths] = [Synthetic(name=name.value, seed=seed) for name in names]
    return [*found, Recorded(file, loops)] if file else found


def table(results: Sequence[DepthResult | NoExitResult]) -> list[tuple[str, ...]]:
    """Columns for people."""
    from rlt_core.bench.depth import DepthResult

    rows = [_row(r) if isinstance(r, DepthResult) else _no_exit_row(r) for r in results]
    return [HEAD if results and isinstance(results[0], DepthResult) else NO_EXIT_HEAD, *rows]


def _row(found: DepthResult) -> tuple[str, ...]:
    return (
        str(found.load.context),
        str(found.load.width),
        found.depths,
        f"{found.mean_depth:.2f}",
        f"{spread(found.fixed_ms)} {found.fixed_by}",
        spread(found.cohort_ms),
        spread(found.refill_ms),
        f"{found.boundary.loops:.2f}",
        f"{found.bound:.3f}",
        f"{found.speedup:.3f}",
        f"{found.speedup / found.bound:.1%}",
        f"{found.cohort_speedup:.3f}",
    )


def _no_exit_row(found: NoExitResult) -> tuple[str, ...]:
    return (
        str(found.load.context),
        str(found.load.width),
        spread(found.cohort_ms),
        spread(found.together_ms),
        f"{found.overhead(found.together_ms):+.1%}",
        spread(found.spread_ms),
        f"{found.overhead(found.spread_ms):+.1%}",
    )
