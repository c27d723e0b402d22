"""`rlt bench kernels`: operators and attention of a model, against the device's ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rlt_core.cli import bench_setting as shared
from rlt_core.cli import options
from rlt_core.cli.bench_record import Recorder, progress
from rlt_core.cli.options import OnOff
from rlt_core.cli.output import print_columns
from rlt_core.plugins.registry import discover

if TYPE_CHECKING:
    from rlt_core.bench.kernels import KernelResult

CUDA_ROWS, CPU_ROWS = (1, 16, 64, 256, 2048), (1, 16)
HEAD = ("candidate", "shape", "rows", "us", "GB/s", "of reads", "TFLOP/s", "of products")


def kernels(
    model: options.Model = None,
    rows: Annotated[
        list[int] | None, typer.Option("--rows", min=1, help="Rows of a launch; repeatable.")
    ] = None,
    context: Annotated[
        int, typer.Option("--context", min=1, help="Positions that a decode row sees.")
    ] = 1024,
    every: Annotated[
        bool, typer.Option("--all", help="All candidates for the device, not only those chosen.")
    ] = False,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    page_size: options.PageSize = None,
    ignore_config: options.IgnoreConfig = None,
    as_json: shared.JsonLines = False,
) -> None:
    """Time each operator and the attention of a model, in its shapes, against the device's limits.

    Of MODEL only the config.json is read. The limits are the read bandwidth and the rate of a large
    product, measured in the same run. Up to 256 rows are decode rows; more are a prompt.
    """
    import torch

    from rlt_core.bench.bandwidth import read_bandwidth
    from rlt_core.bench.kernels import measure_kernel, row_counts, subjects
    from rlt_core.bench.launch_time import product_rate
    from rlt_core.bench.setting import check_setting

    setting = shared.make_setting(
        model,
        None,
        seed=0,
        ops=op,
        exact=exact,
        graphs=None,
        ignore_config=ignore_config,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
    )
    registry = discover()
    plan = check_setting(setting, registry)
    counts = rows or (CUDA_ROWS if setting.on_gpu else CPU_ROWS)
    found = subjects(plan, registry, every=every)
    points = [(subject, num) for subject in found for num in row_counts(subject, counts)]
    on = torch.device(plan.device)
    reads, products = read_bandwidth(on), product_rate(on, getattr(torch, plan.dtype))
    given = {"context": context, "reads_bytes_per_s": reads, "products_per_s": products}
    recorder = Recorder.of("kernels", setting, plan, registry, given, as_json=as_json)
    results = []
    with progress(len(points)) as steps:
        for subject, num in points:
            steps.begin(f"{subject.spec.id}, {num} rows")
            results.append(measure_kernel(subject, plan, num, context))
            recorder.add(results[-1].as_dict())
            steps.done()
    if not as_json:
        typer.echo(recorder.heading())
        typer.echo(
            f"reads {reads / 1e9:,.1f} GB/s, multiplies {products / 1e12:,.2f} TFLOP/s; "
            f"decode rows see {context} positions"
        )
        print_columns([HEAD, *(row(result, reads, products) for result in results)])


def row(result: KernelResult, reads: float, products: float) -> Sequence[str]:
    """One line for people."""
    rate = ("-", "-")
    if result.operations:
        rate = (f"{result.rate / 1e12:,.1f}", f"{result.rate / products:.0%}")
    return (
        result.id if result.op != "attend" else f"attention {result.id}",
        result.shape,
        str(result.rows),
        f"{result.micros:,.2f}",
        f"{result.bandwidth / 1e9:,.0f}",
        f"{result.bandwidth / reads:.0%}",
        *rate,
    )
