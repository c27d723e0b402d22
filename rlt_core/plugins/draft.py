"""A choice with every gap filled: what was asked for, and what the system picks for the rest.

A draft may still hold conflicts; `conflicts.find_conflicts` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlt_core.contract.errors import OptionError, UnknownNameError
from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    OpSpec,
    PromptModeSpec,
    StrategySpec,
)
from rlt_core.plugins.kinds import OPERATORS, OPTIONAL_OPERATORS, kind_of
from rlt_core.plugins.limits import head_dims, lack_of, limit_faults
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import Registry, S

LAYOUT, STRATEGY, PROMPTS, POLICY = "last_exited", "refill", "chunked", "fixed"
DTYPES = ("bfloat16", "float32")
_DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All parts of a choice. `ops` holds None where no candidate fits; `choice` is what was `asked`
    with the page size that the attention backend needs, where none was asked for."""

    asked: Choice
    choice: Choice
    model: ModelSpec
    shape: ModelShape
    layout: KVLayoutSpec
    policy: ExitPolicySpec
    strategy: StrategySpec
    prompts: PromptModeSpec
    attention: AttentionSpec
    ops: Mapping[str, OpSpec | None]
    dtype: str
    max_depth: int
    draft_depth: int
    notes: tuple[str, ...]

    @property
    def device_type(self) -> str:
        return self.choice.device.partition(":")[0]


def check_options(choice: Choice) -> None:
    """Refuse values that are wrong by themselves. Raises OptionError or UnknownNameError."""
    if not _DEVICE.fullmatch(choice.device):
        reason = "is neither cpu nor cuda (one of several: cuda:1)"
        raise OptionError("--device", choice.device, reason, "Fix: --device cpu")
    if choice.exit_mode not in ("skip", "full"):
        raise UnknownNameError("exit mode", choice.exit_mode, ["skip", "full"])
    if choice.dtype is not None and choice.dtype not in (*DTYPES, "float16"):
        raise UnknownNameError("dtype", choice.dtype, DTYPES)
    for option, value in (("--page-size", choice.page_size), ("--max-depth", choice.max_depth)):
        # bool is an int in Python, and True is no size.
        if value is not None and (type(value) is not int or value < 1):
            raise OptionError(option, value, "must be a whole number, 1 or more")
    if choice.draft_depth is not None and (
        type(choice.draft_depth) is not int or choice.draft_depth < 0
    ):
        raise OptionError("--draft-depth", choice.draft_depth, "must be a whole number, 0 or more")
    if choice.role != "unified":
        reason = "this version has no split stages; a stage does prompts and decoding"
        raise OptionError("--role", choice.role, reason, "Fix: --role unified")
    for op in choice.ops:
        if op not in (*OPERATORS, *OPTIONAL_OPERATORS):
            raise UnknownNameError("operator", op, (*OPERATORS, *OPTIONAL_OPERATORS))


def make_draft(choice: Choice, model: ModelSpec, shape: ModelShape, registry: Registry) -> Draft:
    """Fill the gaps of a choice for one model. Raises UnknownNameError for a name not installed."""
    notes: list[str] = []
    layout = _pick(registry, KVLayoutSpec, choice.kv_layout, LAYOUT, notes)
    strategy = _pick(registry, StrategySpec, choice.strategy, STRATEGY, notes)
    prompts = _pick(registry, PromptModeSpec, choice.prompts, PROMPTS, notes)
    policy = _pick_policy(registry, choice, model, shape, layout, notes)
    dtype = choice.dtype or shape.dtype
    if choice.dtype is None:
        notes.append(f"dtype {dtype}: the checkpoint's own")
    attention = _pick_attention(registry, choice, shape, dtype, notes)
    sized = _with_page_size(choice, attention, notes)
    ops = {op: _pick_op(registry, choice, op, dtype) for op in OPERATORS}
    notes += _passed_over(registry, choice, dtype)
    optional = {op: _pick_op(registry, choice, op, dtype) for op in OPTIONAL_OPERATORS}
    ops |= {op: spec for op, spec in optional.items() if spec is not None}
    return Draft(
        asked=choice,
        choice=sized,
        model=model,
        shape=shape,
        layout=layout,
        policy=policy,
        strategy=strategy,
        prompts=prompts,
        attention=attention,
        ops=ops,
        dtype=dtype,
        max_depth=shape.loops if choice.max_depth is None else choice.max_depth,
        draft_depth=_draft_depth(choice, strategy, shape, notes),
        notes=tuple(notes),
    )


def _draft_depth(
    choice: Choice, strategy: StrategySpec, shape: ModelShape, notes: list[str]
) -> int:
    """Loops after which a token is guessed: as asked for, or a quarter of the model's."""
    if strategy.entry is not Entry.ON_GUESS:
        return 0
    if choice.draft_depth is not None:
        return choice.draft_depth
    picked = max(1, shape.loops // 4)
    notes.append(f"draft depth {picked}: a quarter of the model's {shape.loops} loops")
    return picked


def _pick(
    registry: Registry, kind: type[S], asked: str | None, default: str, notes: list[str]
) -> S:
    if asked is None:
        notes.append(f"{kind_of(kind).label} {default}: the default")
    return registry.get(kind, default if asked is None else asked)


def _pick_policy(
    registry: Registry,
    choice: Choice,
    model: ModelSpec,
    shape: ModelShape,
    layout: KVLayoutSpec,
    notes: list[str],
) -> ExitPolicySpec:
    """The policy asked for; else the checkpoint's own where it can work; else `fixed`."""
    if choice.exit_policy is not None:
        return registry.get(ExitPolicySpec, choice.exit_policy)
    named = {spec.id: spec for spec in registry.all(ExitPolicySpec)}
    own = named.get(shape.exit_policy)
    missing = sorted(own.needs - model.provides - layout.provides) if own else []
    if own is not None and not missing:
        notes.append(f"exit policy {own.id}: the checkpoint's own")
        return own
    lack = f"needs {', '.join(missing)}, which model and layout do not provide"
    why = lack if own else "is not installed"
    notes.append(f"exit policy {POLICY}: the checkpoint's own ({shape.exit_policy}) {why}")
    return registry.get(ExitPolicySpec, POLICY)


def _pick_attention(
    registry: Registry, choice: Choice, shape: ModelShape, dtype: str, notes: list[str]
) -> AttentionSpec:
    """The backend asked for; else the fitting one of the highest priority, and it is said."""
    if choice.attention is not None:
        return registry.get(AttentionSpec, choice.attention)
    ranked = sorted(registry.all(AttentionSpec), key=lambda spec: (-spec.priority, spec.id))
    faults = {spec.id: limit_faults(spec, choice, dtype, head_dims(shape)) for spec in ranked}
    fitting = [spec for spec in ranked if not faults[spec.id]]
    chosen = (fitting or ranked)[0]
    passed = ranked[: ranked.index(chosen)]
    left = "; ".join(f"{spec.id} does not fit: {faults[spec.id][0][1]}" for spec in passed)
    notes.append(f"attention {chosen.id}: {left or 'the default'}")
    return chosen


def _passed_over(registry: Registry, choice: Choice, dtype: str) -> list[str]:
    """The candidates that only something missing keeps out, and how to get it."""
    return [
        f"operator {spec.id} is passed over: {lack}"
        for spec in registry.all(OpSpec)
        if (lack := lack_of(spec))
        and spec.op not in choice.ops
        and len(limit_faults(spec, choice, dtype, ())) == 1
    ]


def _with_page_size(choice: Choice, attention: AttentionSpec, notes: list[str]) -> Choice:
    """The choice, with a page size that the backend allows where it leaves the size open."""
    sizes = attention.page_sizes
    if choice.page_size is not None or not sizes or choice.kv_page_size in sizes:
        return choice
    nearest = min(sizes, key=lambda size: abs(size - choice.kv_page_size))
    notes.append(f"page size {nearest}: what attention {attention.id} allows")
    return replace(choice, page_size=nearest)


def _pick_op(registry: Registry, choice: Choice, op: str, dtype: str) -> OpSpec | None:
    asked = choice.ops.get(op)
    if asked is not None:
        spec = registry.get(OpSpec, asked)
        if spec.op != op:
            raise OptionError("--op", f"{op}={asked}", f"{asked} is a candidate for {spec.op}")
        return spec
    candidates = [
        spec
        for spec in registry.all(OpSpec)
        if spec.op == op and not limit_faults(spec, choice, dtype, ())
    ]
    device = choice.device.partition(":")[0]
    return registry.choose_op(op, candidates, device=device, dtype=dtype, exact=choice.exact)
