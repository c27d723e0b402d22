"""A plan in words: for `rlt explain`, for logs, and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rlt_core.contract.capabilities import promise
from rlt_core.contract.specs import ModelShape, ModelSpec, ParamSpec, Spec
from rlt_core.plugins.kinds import Part, kind_of
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry


def plan_parts(plan: Plan) -> tuple[Part, ...]:
    """The parts of a plan, operators excluded."""
    return plan.model, plan.layout, plan.policy, plan.strategy, plan.prompts, plan.attention


def plan_rows(plan: Plan, registry: Registry) -> Iterator[tuple[str, str, str]]:
    """(part, what was chosen, plugin or reason) for every line of an explanation."""
    folder = plan.choice.model_path
    if folder:
        yield "checkpoint", folder, ""
    for spec in plan_parts(plan):
        yield kind_of(spec).label, spec.id, f"{registry.source(spec)}: {spec.summary}"
    yield "exit mode", plan.exit_mode, ""
    yield "loops", str(plan.shape.loops), f"up to depth {plan.max_depth} in this engine"
    if plan.num_lanes:
        guesses = f"guessed after {plan.draft_depth} loops" if plan.draft_depth else "not guessed"
        yield "tokens", guesses, f"up to {plan.num_lanes} rows of a request in flight"
    exact = "exact" if plan.choice.exact else "not exact"
    yield "computed on", f"{plan.device}, {plan.dtype}", exact
    for op, candidate in plan.ops.items():
        yield "operator", f"{op}: {candidate.id}", str(registry.source(candidate))
    for track in plan.shape.tracks:
        planes = "a plane per depth" if track.per_depth else "one plane"
        size = f"{track.num_layers} layers, {track.num_kv_heads} KV heads of {track.head_dim}"
        yield "track", track.name, f"{size}, {planes}"
    for option in plan.model.options:
        yield "model option", option.name, f"{_option_text(option)}: {option.summary}"


def plan_words(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """(part, word, its sentence) for every word that a part needs."""
    for spec in plan_parts(plan):
        for word in sorted(spec.needs):
            yield f"{kind_of(spec).label} {spec.id}", "".join(word), promise(word)


def plan_dict(plan: Plan, registry: Registry) -> dict[str, object]:
    """A plan as plain data."""
    parts = {kind_of(spec).label.replace(" ", "_").lower(): spec for spec in plan_parts(plan)}
    return {
        "checkpoint": plan.choice.model_path,
        **{name: _spec_dict(spec, registry) for name, spec in parts.items()},
        "exit_mode": plan.exit_mode,
        "device": plan.device,
        "dtype": plan.dtype,
        "exact": plan.choice.exact,
        "graphs": plan.graphs,
        "page_size": plan.choice.kv_page_size,
        "max_depth": plan.max_depth,
        "draft_depth": plan.draft_depth,
        "ops": {op: spec.id for op, spec in plan.ops.items()},
        "shape": _shape_dict(plan.shape),
        "model_options": option_dicts(plan.model),
        "notes": list(plan.notes),
    }


def _spec_dict(spec: Spec, registry: Registry) -> dict[str, object]:
    source = registry.source(spec)
    return {"id": spec.id, "distribution": source.distribution, "version": source.version}


def option_dicts(model: ModelSpec) -> list[dict[str, object]]:
    """What a request may set of a model's own, as plain data."""
    fields = ("name", "kind", "summary", "default", "minimum", "maximum", "chains")
    return [{field: getattr(spec, field) for field in fields} for spec in model.options]


def _option_text(spec: ParamSpec) -> str:
    """ "float, 0 or more, default 1"."""
    words: list[str] = ["file" if spec.kind == "table" else spec.kind]
    if spec.minimum is not None:
        words.append(f"{'above' if spec.exclusive_minimum else 'at least'} {spec.minimum:g}")
    if spec.maximum is not None:
        words.append(f"at most {spec.maximum:g}")
    if spec.default is not None:
        words.append(f"default {str(spec.default).lower()}")
    return ", ".join(words)


def _shape_dict(shape: ModelShape) -> dict[str, object]:
    fields = ("loops", "max_loops", "vocab_size", "state_width", "max_positions", "dtype")
    names = ("name", "num_layers", "num_kv_heads", "head_dim", "per_depth")
    return {
        **{field: getattr(shape, field) for field in fields},
        "tracks": [{name: getattr(track, name) for name in names} for track in shape.tracks],
        "exit_policy": shape.exit_policy,
        "exit_defaults": dict(shape.exit_defaults),
    }
