"""The Typer app: the core's commands, then those that plugins add."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from rlt_core.cli import bench, check, doctor, eval, explain, plugin, plugins, run, serve
from rlt_core.plugins.registry import discover


def run_app(argv: list[str]) -> int:
    """Parse and run one command line; usage errors print and give exit code 2."""
    app = build_app()
    for failure in discover().add_commands(app):
        sys.stderr.write(f"{failure}\n")
    try:
        app(argv, prog_name="rlt")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def build_app() -> typer.Typer:
    """The command line with the core's own commands."""
    app = typer.Typer(
        help="Serve looped language models: every token takes only the loops it needs.",
        no_args_is_help=True,
        add_completion=False,
        # Plain help and errors: one to four lines, the same in a terminal, a log and the docs.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in (run, serve, explain, plugins, plugin, check, eval, bench, doctor):
        command.register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlt-core {metadata.version('rlt-core')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and leave.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """The options of `rlt` itself; their callbacks do the work."""
