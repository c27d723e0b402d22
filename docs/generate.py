"""The generated parts of the documentation; `make docs` writes them through cog.

Each function returns Markdown. Nothing here imports torch, and nothing depends on the Python
version, the terminal or plugins from elsewhere, so that `cogapp --check` can hold the pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import product
from typing import Any

import typer

from rlt_core.cli.app import build_app
from rlt_core.contract import layouts as layouts_data
from rlt_core.contract import protocols, specs
from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import ConflictError
from rlt_core.contract.hookspecs import HookSpecs
from rlt_core.contract.specs import (
    ExitPolicySpec,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    StrategySpec,
)
from rlt_core.plugins.discovery import installed
from rlt_core.plugins.kinds import KEEPERS
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.plugins.resolve import resolve

OURS = frozenset({"rlt-core", "rlt-ouro", "rlt-nanbeige", "rlt-huginn", "rlt-kernels"})
SIGNALS = (Word.GATE, Word.STATE, Word.LOGITS)
MODES = ("skip", "full")


def hooks() -> str:
    """A section per hook: its signature and its docstring."""
    return "\n".join(_hook(name) for name in hook_names())


def hook_names() -> list[str]:
    """All hooks, in the order of their specification."""
    return [name for name in vars(HookSpecs) if name.startswith("rlt_")]


def hook_signature(name: str) -> str:
    """`rlt_choose_op(op, candidates, device, dtype, exact)`."""
    parameters = inspect.signature(getattr(HookSpecs, name)).parameters
    return f"{name}({', '.join(p for p in parameters if p != 'self')})"


def words() -> str:
    """The capability words, who keeps them, and their promises."""
    keepers = {word: KEEPERS[word].__name__.removesuffix("Spec") for word in Word}
    rows = [(f"`{word.value}`", keepers[word], word.promise) for word in Word]
    return table(("word", "promised by", "promise"), rows)


def spec(name: str) -> str:
    """A spec's docstring and its fields."""
    homes = (specs, protocols, layouts_data)
    kind = next(vars(home)[name] for home in homes if name in vars(home))
    rows = [(f"`{f.name}`", _cell(f.type), _default(f)) for f in fields(kind)]
    heading = f"### `{name}`\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n"
    return heading + table(("field", "type", "default"), rows)


def protocol(name: str) -> str:
    """A protocol as it stands in the source."""
    source = inspect.getsource(getattr(protocols, name)).rstrip()
    return f"### `{name}`\n\n```python\n{source}\n```\n"


def models() -> str:
    """The capability table: a row per installed model."""
    registry = registry_of_ours()
    rows = []
    for model in registry.all(ModelSpec):
        loops = f"{_shape(model, registry).loops} (demo)" if model.demo else "by the checkpoint"
        others = sorted("".join(word) for word in model.provides - set(SIGNALS))
        rows.append(
            (
                f"`{model.id}`",
                _code(model.model_types),
                str(registry.source(model).distribution),
                _code(word.value for word in SIGNALS if word in model.provides),
                _code(others),
                loops,
            )
        )
    head = ("model", "`model_type`", "from", "signals", "promises", "loops")
    return table(head, rows)


def layouts() -> str:
    """KV layout x exit mode x strategy, by asking `resolve` for every one."""
    registry = registry_of_ours()
    columns = list(product(MODES, [s.id for s in registry.all(StrategySpec)]))
    notes: list[str] = []
    rows = []
    for model, layout in product(registry.all(ModelSpec), registry.all(KVLayoutSpec)):
        choices = (
            Choice(model=model.id, kv_layout=layout.id, exit_mode=mode, strategy=strategy)  # type: ignore[arg-type]
            for mode, strategy in columns
        )
        shape = _shape(model, registry)
        answers = (_answer(choice, shape, registry, notes) for choice in choices)
        rows.append((f"`{model.id}`", f"`{layout.id}`", *answers))
    head = ("model", "KV layout", *(f"*{mode}*, `{strategy}`" for mode, strategy in columns))
    return table(head, rows) + _footnotes(notes)


def policies() -> str:
    """Exit policies: what they need and take, and whether each model and layout can serve them."""
    registry = registry_of_ours()
    found = registry.all(ExitPolicySpec)
    notes: list[str] = []
    rows = []
    pairs = list(product(registry.all(ModelSpec), registry.all(KVLayoutSpec)))
    for policy in found:
        answers = [
            _answer(
                Choice(model=model.id, kv_layout=layout.id, exit_policy=policy.id),
                _shape(model, registry),
                registry,
                notes,
            )
            for model, layout in pairs
        ]
        needs = _code(sorted("".join(word) for word in policy.needs)) or "nothing"
        params = _code(param.name for param in policy.params) or "none"
        rows.append((f"`{policy.id}`", policy.summary, needs, params, *answers))
    served = (f"`{model.id}`, `{layout.id}`" for model, layout in pairs)
    return table(("policy", "what", "needs", "parameters", *served), rows) + _footnotes(notes)


def commands() -> str:
    """Every command with its arguments and options."""
    root: Any = typer.main.get_command(build_app())
    return "\n".join(_command("rlt", root))


def conformance() -> str:
    """Every check of the conformance kit by kind, from its docstring."""
    # Here and not above: the checks themselves compute, so they import torch.
    from rlt_core.testing.checks.catalog import CHECKS

    sections = []
    for kind in dict.fromkeys(check.kind for check in CHECKS):
        rows = [
            (f"`{check.name}`", check.guards, _code(_word(check.word)), check.hint)
            for check in CHECKS
            if check.kind == kind
        ]
        head = ("check", "what it guards", "where it promises", "if it fails")
        sections.append(f"### {kind.capitalize()}\n\n{table(head, rows)}")
    return "\n".join(sections)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def registry_of_ours() -> Registry:
    """The plugins of this repository, whatever else is installed."""
    return build_registry(c for c in installed() if c.source.distribution in OURS)


def _shape(model: ModelSpec, registry: Registry) -> ModelShape:
    """Of the demo, or of the small example where a model has no demo."""
    if model.demo or model.example is None:
        return resolve(Choice(model_path=model.id), registry).shape
    config = load_object(model.example)()
    shape: ModelShape = load_object(model.reader)(config, model.example, frozenset())
    return shape


def _answer(choice: Choice, shape: ModelShape, registry: Registry, notes: list[str]) -> str:
    try:
        resolve(choice, registry, shape=shape)
    except ConflictError as error:
        marks = []
        for conflict in error.conflicts:
            note = f"{conflict.left} and {conflict.right}: {conflict.reason}."
            note = re.sub(r" \(rlt-\w+ [\w.]+\)", "", note)
            notes.extend([note] if note not in notes else [])
            marks.append(str(notes.index(note) + 1))
        return f"no ({', '.join(marks)})"
    return "yes"


def _footnotes(notes: list[str]) -> str:
    lines = [f"({number}) {note}" for number, note in enumerate(notes, 1)]
    return "\n" + "\\\n".join(lines) + "\n" if lines else ""


def _cell(text: object) -> str:
    """Code inside a table, where a bar would end the cell."""
    return f"`{text}`".replace("|", "\\|")


def _word(word: str | None) -> list[str]:
    return [] if word is None else [Word(word).value]  # type: ignore[call-arg]


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(found: Any) -> str:
    if found.default is not MISSING:
        value = found.default
        return "no words" if value == frozenset() else f"`{value!r}`"
    return f"`{found.default_factory()!r}`" if found.default_factory is not MISSING else "required"


def _hook(name: str) -> str:
    body = inspect.cleandoc(getattr(HookSpecs, name).__doc__ or "")
    body = re.sub(r"Example::\n\n((?:    .*\n?|\n)+)", _code_block, body)
    return f"### `{hook_signature(name)}`\n\n{body}\n"


def _code_block(match: re.Match[str]) -> str:
    code = inspect.cleandoc(match.group(1))
    return f"Example:\n\n```python\n{code}\n```\n"


def _command(path: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield f"## `{path}`\n\n{inspect.cleandoc(command.help or '')}\n"
        rows = [row for param in command.params if (row := _param(param))]
        if rows:
            yield table(("option", "what", "default"), rows)
        return
    for name, child in children.items():
        yield from _command(f"{path} {name}", child)


def _param(param: Any) -> tuple[str, str, str] | None:
    if param.param_type_name == "argument":
        name = f"{param.name.upper()}"
    else:
        name = " / ".join([*param.opts, *param.secondary_opts])
    value = getattr(param.default, "value", param.default)
    plain = value is None or value is False or callable(value) or value in ([], ())
    return f"`{name}`", (param.help or "").strip(), "" if plain else f"`{value}`"
