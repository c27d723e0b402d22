"""The documentation is true: signatures, links, generated parts, examples and transcripts."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import typer

import rlt_core
from docs import transcripts
from rlt_core.cli.app import build_app
from rlt_core.contract.hookspecs import HookSpecs
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve
from rlt_core.stage.local import LocalClient

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
}
HOOKS = [name for name in vars(HookSpecs) if name.startswith("rlt_")]
LAYOUTS = ("last_exited", "shared", "last_step")
STRATEGIES = ("refill", "cohort")
TEMPLATE = ROOT / "rlt_core/templates/rlt_mymodel"
TUTORIALS = ("README.md", "docs/quickstart.md")


def _blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def _arguments(hook: str) -> list[str]:
    return list(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_is_documented_with_its_exact_signature(hook: str) -> None:
    """Guards plugin authors against an argument that was renamed or added in the code alone."""
    assert f"### `{hook}({', '.join(_arguments(hook))})`\n" in PAGES["docs/hooks.md"]


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_docstring_says_when_and_shows_an_example(hook: str) -> None:
    """Guards the reference: the docstring is it; an example may name real arguments only."""
    text = inspect.cleandoc(getattr(HookSpecs, hook).__doc__ or "")
    assert "When:" in text
    assert "Return:" in text
    # ", ...)" stands for the fields that an example leaves out.
    example = ast.parse(_code(text.partition("Example::")[2].replace(", ...)", ")")))
    (function,) = (node for node in example.body if isinstance(node, ast.FunctionDef))
    assert function.name == hook
    assert {arg.arg for arg in function.args.args} <= set(_arguments(hook))


def _code(indented: str) -> str:
    return inspect.cleandoc(indented.strip("\n"))


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_is_used(hook: str) -> None:
    """Guards against a hook that nothing implements: neither the core's plugin nor a test."""
    files = [ROOT / "rlt_core/plugins/core.py", *sorted((ROOT / "tests").glob("test_*.py"))]
    assert any(hook in file.read_text(encoding="utf-8") for file in files)


def test_no_page_documents_a_hook_that_is_gone() -> None:
    """Guards against pages that outlive a hook."""
    named = {name for page in PAGES.values() for name in re.findall(r"`(rlt_\w+)\(", page)}
    assert named == set(HOOKS)


def test_public_names_are_documented() -> None:
    """Guards `rlt_core.__all__` against a name that no page mentions."""
    text = "\n".join(PAGES.values())
    assert [name for name in rlt_core.__all__ if not re.search(rf"\b{name}\b", text)] == []


def _links() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        for target in re.findall(r"\]\(([^)]+)\)", page):
            yield name, target


def test_links_resolve() -> None:
    """Guards against links to files and headings that moved."""
    broken = []
    for name, target in _links():
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        path = ROOT / name if not file else (ROOT / name).parent / file
        if not path.is_file() or (anchor and anchor not in _anchors(path)):
            broken.append(f"{name}: {target}")
    assert broken == []


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def test_files_that_pages_name_exist() -> None:
    """Guards the journey of a token against files that were renamed."""
    homes = (ROOT / "rlt_core", ROOT, ROOT / "docs", ROOT / "plugins/rlt_ouro", TEMPLATE)
    gone = [
        f"{name}: {file}"
        for name, page in PAGES.items()
        for file in re.findall(r"`([\w./]+(?:/|\.py))`", page)
        if "/" in file and not any((home / file).exists() for home in homes)
    ]
    assert gone == []


def test_every_folder_of_the_core_is_in_the_architecture() -> None:
    """Guards the list of folders against a new one."""
    folders = {path.parent.name for path in (ROOT / "rlt_core").glob("*/__init__.py")}
    listed = set(re.findall(r"`(\w+)/`", PAGES["docs/architecture.md"]))
    assert folders - listed == set()


@pytest.mark.slow
def test_generated_parts_are_up_to_date() -> None:
    """Guards against pages that `make docs` would change (with -r, --check never fails)."""
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", *PAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}Fix: make docs"


@pytest.mark.slow
def test_generated_parts_do_not_depend_on_the_terminal() -> None:
    """Guards `make check` on another machine: widths and colours must not reach a page."""
    env = {"COLUMNS": "37", "FORCE_COLOR": "1", "TERM": "xterm-256color", "LINES": "9"}
    code = "from docs import capabilities as c, generate as g; "
    code += "print(g.commands(), c.layouts(), c.policies(), g.hooks())"
    command = [sys.executable, "-c", code]
    plain, narrow = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=e).stdout
        for e in ({}, env)
    )
    assert plain == narrow
    assert "| `--json` |" in plain


def test_changelog_is_of_the_version_that_is_built() -> None:
    """Guards against a release without its lines for users."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.findall(r'^version = "(.*)"', project, re.MULTILINE)
    assert re.findall(r"^## (\S+)", PAGES["CHANGELOG.md"], re.MULTILINE)[:1] == version


def test_pages_use_the_glossary() -> None:
    """Guards one word for one thing: a pass of the block is a loop everywhere."""
    words = re.compile(r"\b(iterations?|recurrences?|ut|early exiting|kv-cache)\b", re.IGNORECASE)
    found = [(name, words.findall(page)) for name, page in PAGES.items()]
    assert [entry for entry in found if entry[1]] == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [*TUTORIALS, "docs/serving.md"])
def test_python_blocks_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the examples; those of a page share their names, as a reader would run them. The
    stage runs in this process, which the stage's own tests show to be the same code."""
    monkeypatch.setattr("rlt_core.api.llm.StageClient", LocalClient)
    here = "rlt_core.api.served_stage.StageClient"
    monkeypatch.setattr(here, lambda config, _: LocalClient(config))
    names: dict[str, object] = {}
    # The README's plugin is a file of its own; the transcripts run it.
    blocks = [b for b in _blocks("python", PAGES[name]) if not b.startswith("# rlt_")]
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), names)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", TUTORIALS)
def test_transcripts_are_what_is_printed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the transcripts: answers, depths and messages; only the rates may differ."""
    monkeypatch.chdir(ROOT)
    with transcripts.plugin_of(PAGES[name]):
        shown = list(transcripts.commands(PAGES[name]))
        assert len(shown) > 3
        for command, output in shown:
            printed = transcripts.run(command)
            assert transcripts.without_rates(printed).strip() == (
                transcripts.without_rates(output).strip()
            ), command


def test_the_plugin_in_20_lines_fits_every_choice() -> None:
    """Guards what the README says of it: 20 lines; every layout, mode and strategy that work."""
    code = transcripts.PLUGIN.search(PAGES["README.md"])
    assert code is not None
    assert len([line for line in code.group().splitlines() if line.strip()]) <= 20
    with transcripts.plugin_of(PAGES["README.md"]):
        registry = discover()
        assert "still" in {plugin.name for plugin in registry.working}
        for layout, strategy in product(LAYOUTS, STRATEGIES):
            choice = Choice(kv_layout=layout, strategy=strategy, exit_policy="still")
            assert resolve(choice, registry).policy.id == "still"
    assert "still" not in {plugin.name for plugin in discover().working}


def _options(path: list[str]) -> set[str]:
    command = typer.main.get_command(build_app())
    for name in path:
        command = getattr(command, "commands", {}).get(name, command)
    return {"--help"} | {option for param in command.params for option in param.opts}


@pytest.mark.slow
def test_commands_that_are_not_run_have_real_options() -> None:
    """Guards the `sh` blocks, which need a network or a checkpoint."""
    lines = [
        line.split("#")[0]
        for page in PAGES.values()
        for block in _blocks("sh", page)
        for line in block.splitlines()
    ]
    used = [line for line in lines if line.startswith("rlt ")]
    assert used
    for line in used:
        given = set(re.findall(r"--[\w-]+", line))
        assert given <= _options(line.split()[1:3]), line


def test_make_targets_that_pages_name_exist() -> None:
    """Guards the commands of README and contributing."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {t for page in PAGES.values() for t in re.findall(r"(?:^|`)make ([a-z-]+)", page, re.M)}
    assert {"run", "test"} <= named <= targets
