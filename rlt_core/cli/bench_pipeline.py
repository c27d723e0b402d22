"""`rlt bench pipeline`: tokens guessed ahead, against refill and the bound of their acceptance."""

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
from rlt_core.contract.specs import Entry, StrategySpec
from rlt_core.plugins.registry import Registry, discover

if TYPE_CHECKING:
    from rlt_core.bench.pipeline import PipelineBench, PipelineResult
    from rlt_core.bench.setting import Setting

CUDA_BATCHES, CPU_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4)
# (context, tokens)
CUDA_SIZES, CPU_SIZES = (1024, 128), (32, 48)
HEAD = (
    "context",
    "batch",
    "strategy",
    "asked",
    "accepted",
    "ms a token",
    "ticks a token",
    "bound",
    "over refill",
    "wasted loops",
)


def pipeline(
    model: options.Model = None,
    random_weights: shared.RandomWeights = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=1, help="Prompt tokens; repeatable; default: 1024, CPU 32."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch", min=1, help="Requests at once; repeatable; default: 1 to 128, CPU 1, 2, 4."
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option("--new-tokens", min=4, help="A window's tokens; default: 128, CPU 48."),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy", help="Beside refill; repeatable; default: all that guess tokens."
        ),
    ] = None,
    draft_depth: options.DraftDepth = None,
    acceptance: Annotated[
        list[float] | None,
        typer.Option(
            "--acceptance",
            min=0.0,
            max=1.0,
            help="Guesses are right with this probability; repeatable; default: the model's own.",
        ),
    ] = None,
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
    """Time strategies that guess tokens ahead, against refill.

    Prompts are random tokens, every token takes all loops, greedy. With --acceptance the guesses
    are replaced on the device by the right tokens or wrong ones; random weights accept nothing.
    The bound is draft depth + (loops - draft depth) x (1 - acceptance) ticks a token.
    """
    from rlt_core.bench.pipeline import Load, PipelineBench, setting_of
    from rlt_core.bench.setting import check_length, check_setting

    setting = shared.make_setting(
        model,
        random_weights,
        seed=seed,
        ops=op,
        exact=exact,
        graphs=graphs,
        ignore_config=ignore_config,
        draft_depth=draft_depth,
        kv_layout=kv_layout,
        attention=attention,
        device=device,
        dtype=dtype,
        page_size=page_size,
        num_rows=max_num_tokens,
    )
    registry = discover()
    names = chosen(strategy, registry)
    plans = [check_setting(setting_of(setting, name, registry), registry) for name in names]
    check_guesses([plan.draft_depth for plan in plans], draft_depth, acceptance or ())
    every_context, batches, tokens = sizes(setting, context, batch, new_tokens)
    loads = [Load(context=c, new_tokens=tokens, seed=seed) for c in every_context]
    for load in loads:
        check_length(plans[0], "--context", load.context, load.total(plans[0].shape.loops))
    given = {"repeat": repeat, "seed": seed}
    recorder = Recorder.of("pipeline", setting, plans[0], registry, given, as_json=as_json)
    points = sum(len(acceptance or (0,)) if plan.draft_depth else 1 for plan in plans)
    results = []
    with progress(points * len(batches) * len(loads)) as steps:
        for load in loads:
            bench = PipelineBench(setting, load, registry, repeat=repeat, told=steps.done)
            fitting = list(batches)
            for name in names:
                steps.begin(f"context {load.context}, {name}")
                results += measured(bench, name, acceptance or (), fitting, recorder)
    recorder.end(len(results))
    if not as_json:
        typer.echo(recorder.heading())
        print_columns(table(results))


def chosen(named: Sequence[str] | None, registry: Registry) -> list[str]:
    """Refill, then the strategies named, or all that guess. Raises UnknownNameError."""
    guessing = [s.id for s in registry.all(StrategySpec) if s.entry is Entry.ON_GUESS]
    for name in named or ():
        registry.get(StrategySpec, name)
    return list(dict.fromkeys(("refill", *(named or guessing))))


def check_guesses(
    depths: Sequence[int], draft_depth: int | None, acceptances: Sequence[float]
) -> None:
    """Raise OptionError for options of guesses where nobody guesses."""
    for option, value in (("--draft-depth", draft_depth), ("--acceptance", acceptances or None)):
        if value is not None and not any(depths):
            reason = "none of the strategies guesses tokens"
            raise OptionError(option, str(value), reason, "Fix: --strategy pipeline")


def sizes(
    setting: Setting,
    context: Sequence[int] | None,
    batch: Sequence[int] | None,
    new_tokens: int | None,
) -> tuple[Sequence[int], list[int], int]:
    """Contexts, batches ascending, tokens of a window: as asked for, or the device's."""
    one, tokens = CUDA_SIZES if setting.on_gpu else CPU_SIZES
    batches = sorted(set(batch or (CUDA_BATCHES if setting.on_gpu else CPU_BATCHES)))
    return context or (one,), batches, new_tokens or tokens


def measured(
    bench: PipelineBench,
    strategy: str,
    acceptances: Sequence[float],
    batches: list[int],
    recorder: Recorder,
) -> list[PipelineResult]:
    """Results, recorded; batches that do not fit are skipped, and taken out of the list."""
    while batches:
        try:
            found = bench.measure(strategy, acceptances, batches)
        except CapacityError as error:
            where = {"context": bench.load.context, "batch": batches.pop(), "strategy": strategy}
            recorder.skip(where, error)
            continue
        for result in found:
            recorder.add(result.as_dict())
        return found
    return []


def table(results: Sequence[PipelineResult]) -> list[tuple[str, ...]]:
    """Columns for people."""
    return [HEAD, *(_row(result) for result in results)]


def _row(found: PipelineResult) -> tuple[str, ...]:
    asked = "its own" if found.asked is None else f"{found.asked:.2f}"
    guessed = found.acceptance is not None
    return (
        str(found.context),
        str(found.batch),
        found.strategy,
        asked if found.draft_depth else "-",
        f"{found.acceptance:.3f}" if guessed else "-",
        spread(found.token_ms),
        f"{found.token_ticks:.3f}",
        f"{found.bound:.3f}",
        f"{found.speedup:.2f}",
        f"{found.wasted:.2f}" if guessed else "-",
    )
