"""`rlt plugin new` and `rlt plugin example`: the first minutes of a plugin's author."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.registry import discover
from rlt_core.templates.render import write_plugin


def register(app: typer.Typer) -> None:
    """Add `rlt plugin ...` to the command line."""
    group = typer.Typer(
        help="Write a plugin of your own.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("new")(new)
    group.command("example")(example)
    app.add_typer(group, name="plugin")


def new(
    name: Annotated[str, typer.Argument(help="Of the plugin and its model, as mymodel.")],
    parent: Annotated[
        Path, typer.Option("--dir", help="Where the package's folder is made.")
    ] = Path(),
) -> None:
    """Write the package of a model plugin that installs, passes its checks and runs as it is."""
    folder = write_plugin(name, parent, taken=_taken())
    short = folder.name.removeprefix("rlt-")
    typer.echo(f"{folder}: a working plugin; put your mathematics into its model.py")
    for command in (
        f"pip install -e {'' if folder.is_absolute() else './'}{folder}",
        f"rlt check {short}",
        f"rlt plugin example {short} {short}-example",
        f'rlt run ./{short}-example "Hello"',
    ):
        typer.echo(f"  {command}")


def _taken() -> set[str]:
    """Names that a new plugin cannot have beside what is installed."""
    registry = discover()
    models = {spec.id for spec in registry.all(ModelSpec)}
    return models | {plugin.name for plugin in registry.plugins}


def example(
    model: Annotated[str, typer.Argument(help="The id of an installed model.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random weights.")] = 0,
) -> None:
    """Write a small checkpoint of a model with random weights, to try it before there are any."""
    from rlt_core.testing.example_checkpoint import write_example

    write_example(model, folder, seed=seed)
    path = folder if folder.is_absolute() else f"./{folder}"
    prompt = '"Hello"' if (folder / "tokenizer.json").is_file() else "--prompt-token-ids 5,17,3"
    typer.echo(f"{folder}: random weights; rlt run {path} {prompt}")
