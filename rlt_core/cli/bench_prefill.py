"""`rlt bench prefill`: how fast prompts are worked off, against the rate of products."""

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
from rlt_core.contract.errors import CapacityError
from rlt_core.plugins.registry import discover

if TYPE_CHECKING:
    from rlt_core.bench.prefill import PrefillResult, Prompts

HEAD = (
    "prompts",
    "tokens",
    "rows a tick",
    "seconds",
    "tokens/s",
    "TFLOP",
    "TFLOP/s",
    "of the ceiling",
    "ticks",
)


def prefill(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    prompts: Annotated[
        list[int] | None, typer.Option("--prompts", min=1, help="Prompts at once; repeatable.")
    ] = None,
    prompt_len: Annotated[
        list[int] | None,
        typer.Option("--prompt-len", min=1, help="Tokens of each prompt; repeatable."),
    ] = None,
    max_num_tokens: shared.NumRows = None,
    chunk_size: Annotated[
        int | None, typer.Option("--chunk-size", min=1, help="Rows of a chunk; default: all rows.")
    ] = None,
    prompt_mode: Annotated[
        str | None, typer.Option("--prompt-mode", help="chunked or wavefront.")
    ] = None,
    kv_layout: options.Layout = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    page_size: options.PageSize = None,
    ignore_config: options.IgnoreConfig = None,
    repeat: shared.Repeat = 3,
    seed: shared.Seed = 0,
    as_json: shared.JsonLines = False,
) -> None:
    """Time prompts that come all at once, until the last of them has its first token.

    Prompts are random tokens, new ones in every run, without prefix cache. Operations are those of
    the model's products; the ceiling is the rate of a large square product of the library, measured
    in the same run. Default grid: 32 x 1024, 1 x 1024 and 8 x 4096 tokens; on a CPU 4 x 64, 1 x 64.
    """
    import torch

    from rlt_core.bench.launch_time import product_rate
    from rlt_core.bench.prefill import measure_prefill
    from rlt_core.bench.setting import check_length, check_setting

    setting = shared.make_setting(
        model,
        random_weights,
        seed=seed,
        ops=op,
        exact=exact,
        graphs=graphs,
        ignore_config=ignore_config,
        prompts=prompt_mode,
        kv_layout=kv_layout,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_rows=max_num_tokens,
        chunk_size=chunk_size,
    )
    registry, points = discover(), grid(prompts, prompt_len, on_gpu=setting.on_gpu)
    plan = check_setting(setting, registry)
    for point in points:
        fix = "Fix: a smaller --prompt-len"
        check_length(plan, "--prompt-len", point.length, point.length + 1, fix)
    given = {"prompts": plan.prompts.id, "repeat": repeat, "seed": seed}
    recorder = Recorder.of("prefill", setting, plan, registry, given, as_json=as_json)
    results = []
    with progress(len(points)) as steps:
        rate = product_rate(torch.device(plan.device), getattr(torch, plan.dtype))
        for point in points:
            steps.begin(f"{point.count} prompts of {point.length} tokens")
            try:
                found = measure_prefill(
                    setting, point, registry, rate=rate, repeat=repeat, seed=seed
                )
            except CapacityError as error:
                recorder.skip({"prompts": point.count, "prompt_len": point.length}, error)
                continue
            finally:
                steps.done()
            results.append(found)
            recorder.add(found.as_dict())
    recorder.end(len(results))
    if not as_json:
        typer.echo(recorder.heading())
        typer.echo(f"multiplies {rate / 1e12:.3g} TFLOP/s; every prompt to its first token")
        print_columns(table(results))


def grid(
    counts: Sequence[int] | None, lengths: Sequence[int] | None, *, on_gpu: bool
) -> list[Prompts]:
    """Every number of prompts with every length; the default grid where neither is given."""
    from rlt_core.bench.prefill import CPU_GRID, CUDA_GRID, Prompts

    pairs = list(CUDA_GRID if on_gpu else CPU_GRID)
    if counts or lengths:
        every_count = counts or dict.fromkeys(count for count, _ in pairs)
        pairs = list(product(every_count, lengths or [pairs[0][1]]))
    return [Prompts(count=count, length=length) for count, length in pairs]


def table(results: Sequence[PrefillResult]) -> list[tuple[str, ...]]:
    """Columns for people."""
    return [HEAD, *(_row(result) for result in results)]


def _row(found: PrefillResult) -> tuple[str, ...]:
    return (
        str(found.prompts.count),
        str(found.prompts.length),
        str(found.num_rows),
        spread(found.seconds, 3),
        f"{found.tokens_per_s:,.0f}",
        f"{found.work.products / 1e12:.3g}",
        f"{found.reached / 1e12:.3g}",
        f"{found.share:.0%}",
        str(found.ticks),
    )
