"""`rlt explain`: the plan that a choice becomes, or why it cannot. Loads no weights, no torch."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from rlt_core.cli import options
from rlt_core.cli.options import OnOff
from rlt_core.cli.output import print_columns, print_json
from rlt_core.contract.errors import ConflictError, RltError
from rlt_core.contract.protocols import KVLayout
from rlt_core.kv.accounting import plan_kv, token_bytes
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.prefix import cached_text
from rlt_core.plugins.explain import plan_dict, plan_rows, plan_words
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.registry import Registry, discover
from rlt_core.plugins.resolve import resolve

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


def register(app: typer.Typer) -> None:
    """Add `rlt explain` to the command line."""
    app.command("explain")(explain)


def explain(
    model: options.Model = None,
    kv_layout: options.Layout = None,
    exit_policy: options.Policy = None,
    exit_mode: options.Mode = "skip",
    strategy: options.Strategy = None,
    draft_depth: options.DraftDepth = None,
    prompts: options.Prompts = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    page_size: options.PageSize = None,
    max_depth: options.MaxDepth = None,
    ignore_config: options.IgnoreConfig = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the plan that a choice becomes, or every reason why it cannot work.

    Reads config.json, no weights. Exit code 2 when it cannot work.
    """
    choice = options.choice_of(
        model=model,
        kv_layout=kv_layout,
        exit_policy=exit_policy,
        exit_mode=exit_mode,
        strategy=strategy,
        draft_depth=draft_depth,
        prompts=prompts,
        attention=attention,
        ops=op,
        device=device,
        dtype=dtype,
        exact=exact,
        graphs=graphs,
        page_size=page_size,
        max_depth=max_depth,
        ignore_config=ignore_config,
    )
    registry = discover()
    if as_json:
        _explain_json(choice, registry)
        return
    plan = resolve(choice, registry)
    print_columns([*plan_rows(plan, registry), *_kv_rows(plan)])
    typer.echo("\nPicked by the system:")
    for note in plan.notes:
        typer.echo(f"  {note}")
    typer.echo("\nWhat the parts need of each other, and get:")
    print_columns([(f"  {part}", word, sentence) for part, word, sentence in plan_words(plan)])


def _explain_json(choice: Choice, registry: Registry) -> None:
    """One JSON document either way; a choice that fails still fails, after printing it."""
    try:
        plan = resolve(choice, registry)
    except RltError as error:
        print_json(_error_dict(error))
        raise
    print_json({"works": True, **plan_dict(plan, registry), "kv_bytes_per_token": _kv_bytes(plan)})


def _error_dict(error: RltError) -> dict[str, object]:
    conflicts = error.conflicts if isinstance(error, ConflictError) else ()
    return {
        "works": False,
        "error": type(error).__name__,
        "message": str(error),
        "conflicts": [{"left": c.left, "right": c.right, "reason": c.reason} for c in conflicts],
        "fixes": list(error.fixes) if isinstance(error, ConflictError) else [],
    }


def _kv_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for phase, size in _kv_bytes(plan).items():
        yield "KV of a token", f"{size:,} bytes", phase
    yield "prefix cache", "keeps", cached_text(_kv_plan(plan).tables[_loops(plan) - 1])


def _kv_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of KV that a position takes at the model's own loops."""
    kv, loops = _kv_plan(plan), _loops(plan)
    return {
        "while the prompt runs": token_bytes(kv, loops, "prompt"),
        "afterwards": token_bytes(kv, loops, "decode"),
    }


def _kv_plan(plan: Plan) -> KVPlan:
    layout: KVLayout = load_object(plan.layout.factory)()
    return plan_kv(
        plan.shape,
        layout,
        page_size=plan.choice.kv_page_size,
        max_depth=plan.max_depth,
        element_bytes=_ELEMENT_BYTES[plan.dtype],
    )


def _loops(plan: Plan) -> int:
    return min(plan.shape.loops, plan.max_depth)
