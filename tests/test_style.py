"""Rules of the house that a reader relies on and no linter checks."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlt_core.contract import errors, specs
from rlt_core.contract.hookspecs import HookSpecs

ROOT = Path(__file__).resolve().parent.parent
HOOKS = [name for name in vars(HookSpecs) if name.startswith("rlt_")]
SPECS = [kind for kind in vars(specs).values() if dataclasses.is_dataclass(kind)]
_NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache"}


def _files(*folders: str, suffix: str = ".py") -> Iterator[Path]:
    for folder in folders:
        for file in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if not _NOT_OURS & set(file.relative_to(ROOT).parts):
                yield file


def _functions(file: Path) -> Iterator[tuple[str, int]]:
    """(name, lines of the body without its docstring) of every function in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            start = node.body[0].lineno
            if ast.get_docstring(node) is not None:
                start = (node.body[0].end_lineno or start) + 1
            name = f"{file.relative_to(ROOT)}:{node.name}"
            yield name, max(0, (node.end_lineno or start) - start + 1)


def test_files_stay_under_400_lines() -> None:
    """Guards "one noun per file": a file over the hard limit holds two."""
    files = {
        str(f): len(f.read_text().splitlines()) for f in _files("rlt_core", "plugins", "tests")
    }
    assert {name: count for name, count in files.items() if count > 400} == {}


def test_functions_stay_short() -> None:
    """Guards readability where it is measured: median at most 8 lines, none over 60."""
    counts = dict(item for file in _files("rlt_core", "plugins") for item in _functions(file))
    assert {name: count for name, count in counts.items() if count > 60} == {}
    assert statistics.median(counts.values()) <= 8


def test_every_test_names_the_bug_it_guards() -> None:
    """Guards against a test whose failure tells nobody what is at stake."""
    without = [
        f"{file.relative_to(ROOT)}:{node.name}"
        for file in _files("tests", "plugins")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if ast.get_docstring(node) is None
    ]
    assert without == []


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_s_docstring_is_its_reference(name: str) -> None:
    """Guards the generated hook page: when, what to return, and an example of this very hook."""
    text = inspect.getdoc(getattr(HookSpecs, name)) or ""
    for part in ("When: ", "Return: ", "Example::", "@hookimpl", f"def {name}("):
        assert part in text
    assert 8 <= len(text.splitlines()) <= 20


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_s_name_tells_its_contract(name: str) -> None:
    """Guards STYLE 4: a plural returns declarations, choose_ the first result, add_ changes."""
    word = name.removeprefix("rlt_")
    verb = re.match(r"(choose|open|on|add)_", word)
    assert verb or word.endswith("s")
    options = getattr(HookSpecs, name).rlt_spec
    assert options["firstresult"] == (verb is not None and verb[1] in ("choose", "open"))


@pytest.mark.parametrize("kind", SPECS, ids=lambda kind: kind.__name__)
def test_specs_are_frozen_slotted_and_keyword_only(kind: type) -> None:
    """Guards the plugin author: a misspelt field fails in his own file, at construction."""
    assert "__slots__" in vars(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))
    assert vars(kind)["__dataclass_params__"].frozen
    with pytest.raises(TypeError):
        kind(sumary="a misspelt field")


def test_errors_open_with_their_tree() -> None:
    """Guards the drawing at the top of errors.py against a class that is missing from it."""
    classes = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.RltError)
    }
    drawn = set(re.findall(r"\w+Error", errors.__doc__ or ""))
    assert drawn == classes


def test_the_project_names_no_machine() -> None:
    """Guards a fresh clone: a path of the machine it was written on works nowhere else."""
    places = re.compile(r"/(work|root|home/\w+)/|\.\./shared")
    suffixes = (".py", ".md", ".toml", ".json", "Makefile", "run", ".yml")
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted(ROOT.rglob("*"))
        if file.is_file() and file.name.endswith(suffixes)
        if not _NOT_OURS & set(file.relative_to(ROOT).parts) and file != Path(__file__).resolve()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if places.search(line)
    ]
    assert found == []
