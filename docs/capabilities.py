"""What works with what, as the generated tables of README.md and the cells that tests run.

Every cell comes from the code: of layouts, modes, strategies and policies by asking `resolve`, of
features by the words and options that a model declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from docs.generate import code, registry_of_ours, table
from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import ConflictError
from rlt_core.contract.specs import (
    AttentionSpec,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    StrategySpec,
)
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Choice, ExitMode
from rlt_core.plugins.registry import Registry
from rlt_core.plugins.resolve import resolve

SIGNALS = (Word.GATE, Word.STATE, Word.LOGITS)
MODES: tuple[ExitMode, ...] = ("skip", "full")


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table of features; `holds` says which models have it."""

    name: str
    holds: Callable[[ModelSpec], bool] = lambda model: True


FEATURES = (
    Feature("greedy decoding, float32 and bfloat16"),
    Feature("sampling: temperature, top-k, top-p, min-p, penalties, bias, seeds"),
    Feature("`n` answers to a prompt"),
    Feature("log probabilities of answers and prompts"),
    Feature("`score`: a text under the exit policy used"),
    Feature("prompts in chunks, mixed with decode rows"),
    Feature("requests together: the bits of each alone"),
    Feature("`min_loops` and `max_loops` of a request"),
    Feature("`loops`: another depth", lambda model: Word.LOOPS_OVERRIDE in model.provides),
    Feature("chat by the checkpoint's template"),
    Feature("a gate of its own", lambda model: Word.GATE in model.provides),
    Feature("a start state by seed", lambda model: Word.KEYED_STATE in model.provides),
    Feature("options of its own", lambda model: bool(model.options)),
)


def models() -> str:
    """The models: a row each."""
    registry = registry_of_ours()
    rows = []
    for model in registry.all(ModelSpec):
        loops = f"{shape_of(model, registry).loops} (demo)" if model.demo else "by the checkpoint"
        others = sorted("".join(word) for word in model.provides - set(SIGNALS))
        rows.append(
            (
                f"`{model.id}`",
                code(model.model_types),
                str(registry.source(model).distribution),
                code(word.value for word in SIGNALS if word in model.provides),
                code(others),
                loops,
            )
        )
    head = ("model", "`model_type`", "from", "signals", "promises", "loops")
    return table(head, rows)


def features() -> str:
    """Features x models."""
    found = registry_of_ours().all(ModelSpec)
    rows = [
        (feature.name, *("yes" if feature.holds(model) else "no" for model in found))
        for feature in FEATURES
    ]
    return table(("feature", *(f"`{model.id}`" for model in found)), rows)


def layouts() -> str:
    """Model and KV layout x exit mode and strategy."""
    registry = registry_of_ours()
    columns = list(product(MODES, [s.id for s in registry.all(StrategySpec)]))
    notes: list[str] = []
    rows: dict[tuple[str, str], list[str]] = {}
    for choice in layout_choices(registry):
        key = (f"`{choice.model}`", f"`{choice.kv_layout}`")
        rows.setdefault(key, []).append(_answer(choice, registry, notes))
    head = ("model", "KV layout", *(f"*{mode}*, `{strategy}`" for mode, strategy in columns))
    return table(head, [(*key, *answers) for key, answers in rows.items()]) + _footnotes(notes)


def policies() -> str:
    """Exit policy x model, with every layout: what a policy needs, and who can serve it."""
    registry = registry_of_ours()
    notes: list[str] = []
    rows = []
    found = registry.all(ModelSpec)
    for policy in registry.all(ExitPolicySpec):
        needs = code(sorted("".join(word) for word in policy.needs)) or "nothing"
        params = code(param.name for param in policy.params) or "none"
        answers = [_all_layouts(policy, model, registry, notes) for model in found]
        rows.append((f"`{policy.id}`", policy.summary, needs, params, *answers))
    head = ("policy", "what", "needs", "parameters", *(f"`{model.id}`" for model in found))
    return table(head, rows) + _footnotes(notes)


def backends() -> str:
    """The attention backends: a row each."""
    registry = registry_of_ours()
    rows = []
    for backend in registry.all(AttentionSpec):
        others = sorted("".join(word) for word in backend.provides - {Word.EXACT})
        exact = "yes" if Word.EXACT in backend.provides else "no"
        needs = "a package that is no dependency" if backend.extra else "nothing"
        rows.append(
            (
                f"`{backend.id}`",
                backend.summary,
                str(registry.source(backend).distribution),
                code(backend.devices),
                code(sorted(backend.dtypes)),
                exact,
                code(others),
                needs,
            )
        )
    head = ("attention", "what", "from", "device", "dtypes", "exact", "promises", "needs")
    return table(head, rows)


def layout_choices(registry: Registry) -> Iterator[Choice]:
    """Every cell of `layouts`, row by row."""
    parts = (registry.all(ModelSpec), registry.all(KVLayoutSpec), MODES, registry.all(StrategySpec))
    for model, layout, mode, strategy in product(*parts):
        yield Choice(
            model=model.id,
            kv_layout=layout.id,
            exit_mode=mode,
            strategy=strategy.id,
        )


def policy_choices(registry: Registry) -> Iterator[Choice]:
    """Every policy with every model and layout."""
    parts = (registry.all(ExitPolicySpec), registry.all(ModelSpec), registry.all(KVLayoutSpec))
    for policy, model, layout in product(*parts):
        yield Choice(model=model.id, kv_layout=layout.id, exit_policy=policy.id)


def refusal(choice: Choice, registry: Registry) -> ConflictError | None:
    """Why the choice is refused; None when it can be run."""
    model = registry.get(ModelSpec, str(choice.model))
    try:
        resolve(choice, registry, shape=shape_of(model, registry))
    except ConflictError as error:
        return error
    return None


def shape_of(model: ModelSpec, registry: Registry) -> ModelShape:
    """Of the demo, or of the small example where a model has no demo."""
    if model.demo or model.example is None:
        return resolve(Choice(model_path=model.id), registry).shape
    config = load_object(model.example)()
    shape: ModelShape = load_object(model.reader)(config, model.example, frozenset())
    return shape


def _all_layouts(
    policy: ExitPolicySpec, model: ModelSpec, registry: Registry, notes: list[str]
) -> str:
    """yes when every layout serves the pair, else the answer of each that does not."""
    choice = Choice(model=model.id, exit_policy=policy.id)
    answers = {
        layout.id: _answer(replace(choice, kv_layout=layout.id), registry, notes)
        for layout in registry.all(KVLayoutSpec)
    }
    different = set(answers.values())
    if len(different) == 1:
        return different.pop()
    return ", ".join(f"`{layout}`: {answer}" for layout, answer in answers.items())


def _answer(choice: Choice, registry: Registry, notes: list[str]) -> str:
    error = refusal(choice, registry)
    if error is None:
        return "yes"
    marks = []
    for conflict in error.conflicts:
        note = f"{conflict.left} and {conflict.right}: {conflict.reason}."
        note = re.sub(r" \(rlt-\w+ [\w.]+\)", "", note)
        notes.extend([note] if note not in notes else [])
        marks.append(str(notes.index(note) + 1))
    return f"no ({', '.join(marks)})"


def _footnotes(notes: list[str]) -> str:
    lines = [f"({number}) {note}" for number, note in enumerate(notes, 1)]
    return "\n" + "\\\n".join(lines) + "\n" if lines else ""
