"""`rlt bench decode`: milliseconds between tokens at a fixed depth, against the floor."""

from __future__ import annotations

from collections.abc import Sequence
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
    from rlt_core.bench.decode import DecodeResult, Point

HEAD = (
    "context",
    "batch",
    "ms between tokens",
    "tokens/s",
    "floor ms",
    "of floor",
    "prompt s",
    "host",
)


def decode(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    context: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="Prompt tokens; repeatable.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", min=1, help="Requests at once; repeatable.")
    ] = None,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=2, help="Tokens that every request generates.")
    ] = 128,
    strategy: Annotated[str, typer.Option("--strategy", help="refill or cohort.")] = "refill",
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
    profile: Annotated[
        bool, typer.Option("--profile", help="Also say how long the GPU has nothing to run.")
    ] = False,
    as_json: shared.JsonLines = False,
) -> None:
    """Time decoding at a fixed depth, all requests together, against the floor of memory traffic.

    Prompts are random tokens, every token takes all loops, greedy, no stop id. The floor is the
    bytes that must move over the read bandwidth measured in the same run. Default grid: context
    1024 with batches 1, 8, 32, 64, 128, context 128 with 1, 32, 128; on a CPU context 64 with 1, 8.
    """
    import torch

    from rlt_core.bench.bandwidth import read_bandwidth
    from rlt_core.bench.decode import measure_decode
    from rlt_core.bench.setting import check_length, check_setting

    setting = shared.make_setting(
        model,
        random_weights,
        seed=seed,
        ops=op,
        exact=exact,
        graphs=graphs,
        ignore_config=ignore_config,
        strategy=strategy,
        kv_layout=kv_layout,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_rows=max_num_tokens,
    )
    registry, points = discover(), grid(context, batch, new_tokens, on_gpu=setting.on_gpu)
    plan = check_setting(setting, registry)
    for point in points:
        check_length(plan, "--context", point.context, point.context + new_tokens)
    if profile and not setting.on_gpu:
        raise OptionError("--profile", device, "it watches a GPU", "Fix: --device cuda")
    given = {"strategy": strategy, "repeat": repeat, "seed": seed}
    recorder = Recorder.of("decode", setting, plan, registry, given, as_json=as_json)
    results = []
    with progress(len(points)) as steps:
        bandwidth = read_bandwidth(torch.device(plan.device))
        for point in points:
            steps.begin(f"context {point.context}, batch {point.batch}")
            try:
                found = measure_decode(
                    setting,
                    point,
                    registry,
                    bandwidth=bandwidth,
                    repeat=repeat,
                    seed=seed,
                    profiled=profile,
                )
            except CapacityError as error:
                recorder.skip({"context": point.context, "batch": point.batch}, error)
                continue
            finally:
                steps.done()
            results.append(found)
            recorder.add(found.as_dict())
    recorder.end(len(results))
    if not as_json:
        typer.echo(recorder.heading())
        typer.echo(f"reads {bandwidth / 1e9:,.1f} GB/s; {new_tokens} tokens each, {strategy}")
        print_columns(table(results))


def grid(
    contexts: Sequence[int] | None, batches: Sequence[int] | None, new: int, *, on_gpu: bool
) -> list[Point]:
    """Every context with every batch; the default grid where neither is given."""
    from rlt_core.bench.decode import CPU_GRID, GRID, Point

    default = GRID if on_gpu else CPU_GRID
    pairs = list(default)
    if contexts or batches:
        every_context = contexts or dict.fromkeys(context for context, _ in default)
        pairs = list(product(every_context, batches or dict.fromkeys(b for _, b in default)))
    return [Point(context=context, batch=batch, new_tokens=new) for context, batch in pairs]


def table(results: Sequence[DecodeResult]) -> list[tuple[str, ...]]:
    """Columns for people."""
    profiled = any(result.gpu_idle is not None for result in results)
    head = (*HEAD, *(("GPU idle",) if profiled else ()))
    return [head, *(_row(result) for result in results)]


def _row(found: DecodeResult) -> tuple[str, ...]:
    cells = (
        str(found.point.context),
        str(found.point.batch),
        spread(found.token_ms),
        f"{found.tokens_per_s:,.0f}",
        f"{found.floor_ms:.2f}",
        f"{found.ratio:.2f}",
        spread(found.prompt_s),
        f"{found.host_share:.0%}",
    )
    return cells if found.gpu_idle is None else (*cells, f"{found.gpu_idle:.1%}")
