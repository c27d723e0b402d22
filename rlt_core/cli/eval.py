"""`rlt eval demo`: accuracy and mean depth of the demo model on its held-out problems."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rlt_core.evaluate.demo import Score


def register(app: typer.Typer) -> None:
    """Add `rlt eval` to the command line."""
    group = typer.Typer(help="Measure a model on problems with known answers.")
    group.callback()(_group)
    group.command("demo")(demo)
    app.add_typer(group, name="eval")


def _group() -> None:
    """Measure a model on problems with known answers."""


def demo(
    model: Annotated[
        str | None, typer.Argument(help="A checkpoint with a heldout.jsonl; default: the demo.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first N problems.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Accuracy and mean depth per grade at every number of loops and at exit thresholds."""
    from pathlib import Path

    from rich.console import Console

    from rlt_core.evaluate.demo import evaluate
    from rlt_core.evaluate.problems import load_problems
    from rlt_core.plugins.model_folder import find_model_folder

    folder = find_model_folder(model)
    problems = load_problems(Path(folder))[:limit]
    console = Console(stderr=True)
    with console.status("") as status:
        found = evaluate(str(folder), problems, lambda text: status.update(text))
        if as_json:
            for score in found:
                typer.echo(json.dumps(score.as_dict()))
            return
        results = list(found)
    for line in report(results):
        typer.echo(line)


def report(results: Iterable[Score]) -> Iterator[str]:
    """A table for people: a line per engine and setting, a column per grade."""
    results = list(results)
    grades = sorted({s.grade for s in results if s.grade is not None})
    heads = "".join(f"  grade {grade}" for grade in grades)
    overall = [s for s in results if s.grade is None]
    yield f"accuracy in percent on {overall[0].num_problems} held-out problems"
    yield f"{'KV layout, mode':18} {'setting':14} {'all':>6} {'depth':>6} {'value':>6}{heads}"
    for score in overall:
        mine = {s.grade: s for s in results if _same(s, score)}
        cells = "".join(f"{100 * mine[g].accuracy:9.1f}" for g in grades)
        yield (
            f"{score.engine:18} {score.setting:14} {100 * score.accuracy:6.1f} "
            f"{score.depth:6.2f} {score.value_depth:6.2f}{cells}"
        )


def _same(one: Score, other: Score) -> bool:
    return (one.engine, one.setting) == (other.engine, other.setting)
