"""`rlt check`: does a plugin keep what it declares? The table of every check's outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlt_core.cli.options import AsJson
from rlt_core.cli.output import print_columns, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlt_core.testing.checks.check import Outcome
    from rlt_core.testing.checks.kit import Kit

PASSED, FAILED = 0, 1


def register(app: typer.Typer) -> None:
    """Add `rlt check` to the command line."""
    app.command("check")(check)


def check(
    plugin: Annotated[str, typer.Argument(help="An installed plugin, or its distribution.")],
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="A checkpoint folder; default: small random weights."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a plugin keeps what it declares, with the conformance kit.

    Exit code 0: every check passed or was skipped for a reason; 1: some failed; 2: bad usage.
    """
    from rlt_core.testing.checks.kit import Kit

    kit = Kit(plugin, weights=weights)
    outcomes = _run(kit)
    if as_json:
        print_json(_as_dict(kit, outcomes))
    else:
        _print(kit, outcomes)
    raise typer.Exit(FAILED if any(o.state == "failed" for o in outcomes) else PASSED)


def _run(kit: Kit) -> list[Outcome]:
    outcomes = []
    with _progress(len(kit.cases)) as show:
        for number, case in enumerate(kit.cases):
            show(number, case.id)
            outcomes.append(kit.run(case))
    return outcomes


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr with the name of the check that runs; nothing where it is no terminal."""
    if not sys.stderr.isatty():
        yield lambda number, name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checks", total=total)
        yield lambda number, name: bar.update(task, completed=number, description=name)


def _print(kit: Kit, outcomes: list[Outcome]) -> None:
    print_columns((o.state, o.id, o.reason) for o in outcomes)
    for outcome in outcomes:
        if outcome.state == "failed":
            typer.echo("")
            for line in outcome.lines:
                typer.echo(line)
    counts = ", ".join(f"{n} {state}" for state, n in _counts(outcomes).items() if n)
    typer.echo(f"\n{kit.plugin.name} ({kit.plugin.source}): {counts}")


def _counts(outcomes: list[Outcome]) -> dict[str, int]:
    states = ("passed", "failed", "expected", "skipped")
    return {state: sum(o.state == state for o in outcomes) for state in states}


def _as_dict(kit: Kit, outcomes: list[Outcome]) -> dict[str, object]:
    source = kit.plugin.source
    return {
        "plugin": kit.plugin.name,
        "distribution": source.distribution,
        "version": source.version,
        "counts": _counts(outcomes),
        "checks": [_outcome_dict(outcome) for outcome in outcomes],
    }


def _outcome_dict(outcome: Outcome) -> dict[str, object]:
    told: dict[str, object] = {
        "id": outcome.id,
        "check": outcome.check.name,
        "subject": outcome.subject or None,
        "state": outcome.state,
    }
    if outcome.state in ("failed", "expected"):
        told |= {"expected": outcome.expected, "got": outcome.got, "hint": outcome.check.hint}
    if outcome.reason:
        told["reason"] = outcome.reason
    return told
