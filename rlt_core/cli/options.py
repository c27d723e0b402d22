"""The options that several commands share, so that they are spelt and explained once.

The names after the dashes are those of `api.engine_options.stage_config` and `plugins.plan.Choice`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlt_core.contract.errors import OptionError
from rlt_core.plugins.plan import Choice, ExitMode


class OnOff(str, Enum):
    """A switch that is written out: `--exact off`."""

    ON = "on"
    OFF = "off"


Model = Annotated[
    str | None,
    typer.Argument(help="A checkpoint folder or a model's id; default: the demo model."),
]
Layout = Annotated[
    str | None, typer.Option("--kv-layout", help="Which planes of KV a loop writes and reads.")
]
Policy = Annotated[
    str | None,
    typer.Option("--exit-policy", help="When a token leaves; default: the checkpoint's own."),
]
Mode = Annotated[
    Literal["skip", "full"],
    typer.Option(
        "--exit-mode",
        help="skip: a token's loops end at its exit. full: it is read there and goes on.",
    ),
]
Strategy = Annotated[
    str | None, typer.Option("--strategy", help="How decode rows enter and leave.")
]
DraftDepth = Annotated[
    int | None,
    typer.Option(
        "--draft-depth",
        help="Loops after which strategy pipeline guesses a token; 0: it guesses none.",
    ),
]
Prompts = Annotated[
    str | None, typer.Option("--prompts", help="In which order the cells of prompts run.")
]
Attention = Annotated[str | None, typer.Option("--attention", help="The attention backend.")]
Ops = Annotated[
    list[str] | None,
    typer.Option("--op", metavar="OP=CANDIDATE", help="Take this candidate for an operator."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="float32 or bfloat16; default: the checkpoint's own."),
]
Exact = Annotated[
    OnOff, typer.Option("--exact", help="off: faster operators whose bits depend on the batch.")
]
Graphs = Annotated[
    bool | None,
    typer.Option("--graphs/--no-graphs", help="The tick as CUDA graphs; default: on with a GPU."),
]
PageSize = Annotated[
    int | None,
    typer.Option(
        "--page-size",
        help="Positions of a page of KV; a power of 2 up to 128 (256: some attention backends); "
        "default: 64, CPU 16.",
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Keep written pages of KV for later prompts that begin alike.",
    ),
]
SwapMemory = Annotated[
    int | None,
    typer.Option(
        "--swap-memory",
        help="Bytes of host memory for preempted requests; 0: they are computed again.",
    ),
]
MaxDepth = Annotated[
    int | None,
    typer.Option("--max-depth", help="The most loops of a request; default: the model's own."),
]
IgnoreConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore-config", metavar="KEY", help="Accept this field of config.json as it is."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_place(option: str, file: Path) -> None:
    """OptionError where a file cannot be written, before the work that fills it."""
    if not os.access(file.parent, os.W_OK):
        reason = f"the folder {file.parent} is not there, or cannot be written"
        raise OptionError(option, str(file), reason, "Fix: another folder")


_OPS = "Fix: rlt plugins --ops lists operators and candidates"


def parse_ops(given: Sequence[str] | None) -> dict[str, str]:
    """["linear=torch.linear"] as a dict. Raises OptionError."""
    pairs = {}
    for text in given or ():
        op, equals, candidate = text.partition("=")
        if not (op and equals and candidate):
            raise OptionError("--op", text, "is not of the form OP=CANDIDATE", _OPS)
        pairs[op] = candidate
    return pairs


def parse_extra(given: Sequence[str] | None) -> dict[str, Any]:
    """["state_scale=0", "state_table=start.npy"] as a dict: numbers, true and false as such, other
    text as it stands. Raises OptionError."""
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError("--extra", text, "is not of the form NAME=VALUE", "Fix: rlt explain")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def choice_of(
    *,
    model: str | None = None,
    kv_layout: str | None = None,
    exit_policy: str | None = None,
    exit_mode: ExitMode = "skip",
    strategy: str | None = None,
    draft_depth: int | None = None,
    prompts: str | None = None,
    attention: str | None = None,
    ops: Sequence[str] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    exact: OnOff = OnOff.ON,
    graphs: bool | None = None,
    page_size: int | None = None,
    max_depth: int | None = None,
    ignore_config: Sequence[str] | None = None,
) -> Choice:
    """The choice that the shared options make. Raises OptionError."""
    return Choice(
        model_path=model,
        kv_layout=kv_layout,
        exit_policy=exit_policy,
        exit_mode=exit_mode,
        strategy=strategy,
        draft_depth=draft_depth,
        prompts=prompts,
        attention=attention,
        ops=parse_ops(ops),
        device=device,
        dtype=dtype,
        exact=exact is OnOff.ON,
        graphs=graphs,
        page_size=page_size,
        max_depth=max_depth,
        ignore_config=frozenset(ignore_config or ()),
    )
