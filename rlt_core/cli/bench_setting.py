"""The model and parts that a benchmark measures, as options of the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlt_core.cli.options import OnOff, parse_ops
from rlt_core.contract.errors import OptionError

if TYPE_CHECKING:
    from rlt_core.bench.setting import Setting

RandomWeights = Annotated[
    str | None,
    typer.Option(
        "--random-weights",
        metavar="CONFIG_DIR",
        help="A folder that holds a config.json alone; the weights are drawn on the device.",
    ),
]
NumRows = Annotated[
    int | None,
    typer.Option(
        "--max-num-tokens", min=1, help="Prompt rows in progress; default: 2048, 256 on a CPU."
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Measurements of each point.")]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of weights, prompts and depths."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def make_setting(
    model: str | None,
    random_weights: str | None,
    *,
    seed: int,
    ops: Sequence[str] | None,
    exact: OnOff,
    graphs: bool | None,
    ignore_config: Sequence[str] | None,
    **parts: Any,
) -> Setting:
    """The setting that the options make. Raises OptionError."""
    from rlt_core.bench.setting import Setting

    check_weights(model, random_weights)
    return Setting(
        model=model if random_weights is None else random_weights,
        random_weights=None if random_weights is None else seed,
        ops=parse_ops(ops),
        exact=exact is OnOff.ON,
        graphs=graphs,
        ignore_config=tuple(ignore_config or ()),
        **parts,
    )


def check_weights(model: str | None, random_weights: str | None) -> None:
    """OptionError where the weights are asked for twice, or the folder is not there."""
    if model is not None and random_weights is not None:
        reason = f"the model {model} is given too, with weights of its own"
        raise OptionError("--random-weights", random_weights, reason, "Fix: give one of them")
    if random_weights is not None and not os.path.isdir(random_weights):
        # Else a name would mean an installed model's demo, which has weights.
        reason = "there is no such folder"
        fix = "Fix: name a folder that holds the model's config.json"
        raise OptionError("--random-weights", random_weights, reason, fix)
