"""`rlt bench wavefront`: long prompts among decoding requests, by prompt mode."""

from __future__ import annotations

from collections.abc import Sequence
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
    from rlt_core.bench.arrivals import Scene
    from rlt_core.bench.wavefront import Mode, WavefrontBench, WavefrontResult

# decodes, context, prompts, prompt tokens, prompt rows
CUDA_SIZES, CPU_SIZES = (32, 128, 8, 4096, 2048), (4, 16, 2, 96, 64)
HEAD = (
    "mode",
    "chunk",
    "TTFT ms",
    "p50 ITL ms",
    "p99 ITL ms",
    "p99 without",
    "ratio",
    "total s",
    "ticks",
)


def wavefront(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    decodes: Annotated[
        int | None,
        typer.Option("--decodes", min=1, help="Requests that decode; default: 32, CPU 4."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Their prompt tokens; default: 128, CPU 16."),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option("--prompts", min=1, help="Prompts that arrive; default: 8, CPU 2."),
    ] = None,
    prompt_len: Annotated[
        int | None, typer.Option("--prompt-len", min=1, help="Their tokens; default: 4096, CPU 96.")
    ] = None,
    every: Annotated[
        int, typer.Option("--every", min=0, help="Ticks between two arrivals; 0: all at once.")
    ] = 0,
    quiet: Annotated[
        int, typer.Option("--quiet", min=1, help="Tokens of a decoding request before them.")
    ] = 16,
    max_num_tokens: shared.NumRows = None,
    chunk_size: Annotated[
        int | None,
        typer.Option("--chunk-size", min=1, help="Rows of a chunk; default: the rows by loops."),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How decode rows enter and leave.")
    ] = "refill",
    draft_depth: options.DraftDepth = None,
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
    """Time long prompts that arrive among decoding requests: chunked against wavefront.

    All modes have the same number of prompt rows in a tick (--max-num-tokens, default 2048, CPU
    64), and must give the same tokens. ITL: milliseconds between tokens of the decoding requests
    while there are prompts, and between the same tokens in a run without them.
    """
    from rlt_core.bench.arrivals import Scene
    from rlt_core.bench.setting import check_length, check_setting
    from rlt_core.bench.wavefront import WavefrontBench, modes, setting_of

    default = CUDA_SIZES if device.startswith("cuda") else CPU_SIZES
    rows = max_num_tokens or default[4]
    setting = shared.make_setting(
        model,
        random_weights,
        seed=seed,
        ops=op,
        exact=exact,
        graphs=graphs,
        ignore_config=ignore_config,
        strategy=strategy,
        draft_depth=draft_depth,
        kv_layout=kv_layout,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_rows=rows,
    )
    scene = Scene(
        decodes=decodes or default[0],
        context=context or default[1],
        quiet=quiet,
        prompts=prompts or default[2],
        prompt_len=prompt_len or default[3],
        every=every,
        seed=seed,
    )
    registry = discover()
    plan = check_setting(setting, registry)
    chunk = chunk_size or max(1, rows // plan.shape.loops)
    if chunk > rows:
        reason = f"is above the {rows} prompt rows of --max-num-tokens"
        raise OptionError("--chunk-size", chunk, reason)
    compared = modes(rows, chunk)
    for mode in compared:
        check_setting(setting_of(setting, mode), registry)
        longest = max(one.total for one in scene.lengths(plan, mode.chunk_size, rows))
        fix = "Fix: less of --prompt-len, --prompts, --context, --quiet or --every; larger chunks"
        larger = ("--prompt-len", scene.prompt_len), ("--context", scene.context)
        check_length(plan, *max(larger, key=lambda option: option[1]), longest, fix)
    given = {"strategy": strategy, "repeat": repeat, "seed": seed}
    recorder = Recorder.of("wavefront", setting, plan, registry, given, as_json=as_json)
    results = measured(WavefrontBench(setting, registry, repeat=repeat), scene, compared, recorder)
    recorder.end(len(results))
    if not as_json:
        typer.echo(recorder.heading())
        typer.echo(
            f"{scene.decodes} requests decode, {scene.prompts} prompts of {scene.prompt_len} "
            f"tokens arrive, {rows} prompt rows in a tick, {strategy}"
        )
        print_columns(table(results))


def measured(
    bench: WavefrontBench, scene: Scene, compared: Sequence[Mode], recorder: Recorder
) -> list[WavefrontResult]:
    """One mode after the other, recorded; those that do not fit are skipped."""
    results = []
    with progress(len(compared)) as steps:
        for mode in compared:
            steps.begin(f"{mode.name}, chunks of {mode.chunk_size}")
            try:
                found = bench.measure(scene, mode)
            except CapacityError as error:
                recorder.skip({"mode": mode.name, "chunk_size": mode.chunk_size}, error)
                continue
            finally:
                steps.done()
            results.append(found)
            recorder.add(found.as_dict())
    return results


def table(results: Sequence[WavefrontResult]) -> list[tuple[str, ...]]:
    """Columns for people."""
    return [HEAD, *(_row(result) for result in results)]


def _row(found: WavefrontResult) -> tuple[str, ...]:
    return (
        found.mode.name,
        str(found.mode.chunk_size),
        spread(found.ttft_ms, 1),
        f"{found.p50_ms:.2f}",
        f"{found.p99_ms:.2f}",
        f"{found.quiet_p99_ms:.2f}",
        f"{found.ratio:.2f}",
        spread(found.total_s, 3),
        str(found.ticks),
    )
