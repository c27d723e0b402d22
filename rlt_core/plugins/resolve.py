"""From a choice to a plan, or to one error that lists every conflict and fixes that work.

Reads config.json; reads no weight and imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from rlt_core.contract.errors import ConflictError, OptionError, PluginError, RltError
from rlt_core.contract.specs import ModelShape, ModelSpec
from rlt_core.plugins.conflicts import find_conflicts
from rlt_core.plugins.draft import Draft, check_options, make_draft
from rlt_core.plugins.fixes import find_fixes
from rlt_core.plugins.model_folder import find_checkpoint
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.registry import Registry, discover


def resolve(
    choice: Choice, registry: Registry | None = None, *, shape: ModelShape | None = None
) -> Plan:
    """Check a whole choice and fill its gaps.

    `registry` defaults to what is installed. With `shape`, no folder is read and `choice.model`
    names the model. `choice.model_path` may be a folder, an installed model's id or None (a demo
    checkpoint); the plan's own choice holds the folder that was found.

    Raises ConflictError (all conflicts, each naming both sides), UnknownNameError, OptionError,
    CheckpointError, ConfigError, PluginError or DuplicateIdError.
    """
    registry = registry or discover()
    registry.check()
    check_options(choice)
    found, model, shape, notes = _model(choice, registry, shape)
    _check_widths(model, shape, registry)
    draft = make_draft(found, model, shape, registry)
    conflicts = find_conflicts(draft, registry)
    if conflicts:
        fixes = find_fixes(draft, registry, lambda other: _count(other, draft, registry))
        raise ConflictError(conflicts, fixes)
    return _plan(draft, notes)


def _model(
    choice: Choice, registry: Registry, shape: ModelShape | None
) -> tuple[Choice, ModelSpec, ModelShape, tuple[str, ...]]:
    """The choice with its folder and model filled in, the model, its shape, and notes."""
    if shape is not None:
        if choice.model is None:
            raise OptionError("model", None, "a shape was given without the id of its model")
        return choice, registry.get(ModelSpec, choice.model), shape, ()
    checkpoint = find_checkpoint(choice.model_path, choice.model, registry)
    model = checkpoint.model
    found = replace(choice, model_path=checkpoint.path, model=model.id)
    read = checkpoint.shape(registry, choice.ignore_config)
    return found, model, read, checkpoint.notes


def _check_widths(model: ModelSpec, shape: ModelShape, registry: Registry) -> None:
    """The reader must say how wide the model's table options are."""
    for spec in model.options:
        if spec.kind == "table" and spec.name not in shape.table_widths:
            reason = f"model '{model.id}': its reader gives no table_widths['{spec.name}']"
            raise PluginError(str(registry.source(model)), reason)


def _count(choice: Choice, draft: Draft, registry: Registry) -> int | None:
    """How many conflicts another choice for the same model has; None when it is invalid."""
    try:
        check_options(choice)
        other = make_draft(choice, draft.model, draft.shape, registry)
    except RltError:
        return None
    return len(find_conflicts(other, registry))


def _plan(draft: Draft, notes: tuple[str, ...]) -> Plan:
    return Plan(
        choice=draft.choice,
        model=draft.model,
        shape=draft.shape,
        layout=draft.layout,
        policy=draft.policy,
        exit_mode=draft.choice.exit_mode,
        strategy=draft.strategy,
        prompts=draft.prompts,
        attention=draft.attention,
        # A draft without conflicts has a candidate for every operator.
        ops={op: spec for op, spec in draft.ops.items() if spec is not None},
        device=draft.choice.device,
        dtype=draft.dtype,
        max_depth=draft.max_depth,
        draft_depth=draft.draft_depth,
        notes=(*notes, *draft.notes),
    )
