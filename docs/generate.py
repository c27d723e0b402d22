"""The generated parts of the documentation; `make docs` writes them through cog.

Each function returns Markdown. Nothing here imports torch, and nothing depends on the Python
version, the terminal or plugins from elsewhere, so that `cogapp --check` can hold the pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

import typer

from rlt_core.cli.app import build_app
from rlt_core.contract import layouts as layouts_data
from rlt_core.contract import protocols, specs
from rlt_core.contract.capabilities import Word
from rlt_core.contract.hookspecs import HookSpecs
from rlt_core.plugins.discovery import installed
from rlt_core.plugins.kinds import KEEPERS
from rlt_core.plugins.registry import Registry, build_registry

OURS = frozenset({"rlt-core", "rlt-ouro", "rlt-nanbeige", "rlt-huginn", "rlt-kernels"})


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
            (f"`{check.name}`", check.guards, code(_word(check.word)), check.hint)
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


def code(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def registry_of_ours() -> Registry:
    """The plugins of this repository, whatever else is installed."""
    return build_registry(c for c in installed() if c.source.distribution in OURS)


def _cell(text: object) -> str:
    """Code inside a table, where a bar would end the cell."""
    return f"`{text}`".replace("|", "\\|")


def _word(word: str | None) -> list[str]:
    # "".join: a Word's own value
    return [] if word is None else ["".join(word)]


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
