"""The console blocks of the pages: `python docs/transcripts.py` runs their commands and writes
what they print; tests/test_docs.py holds the pages to it. Rates of tokens are not compared."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/quickstart.md")
BLOCK = re.compile(r"(?<=```console\n)(?:.*\n)*?(?=```)")
PLUGIN = re.compile(r"(?<=```python\n)# (\w+)\.py\n(?:.*\n)*?(?=```)")
PROJECT = re.compile(
    r'\[project\]\nname = "(?P<name>.*)"\nversion = "(?P<version>.*)"\n(?:.*\n)*?'
    r"\[project\.entry-points\.rlt\]\n(?P<points>(?:\w.*\n)+)"
)
RATE = re.compile(r"[\d.]+ tokens/s")


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Every command of a page's console blocks with the output that stands below it."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def run(command: str) -> str:
    """What `rlt ...` prints on stdout and stderr together, run in this process."""
    from rlt_core.cli import main

    program, *argv = shlex.split(command)
    if program != "rlt":
        raise ValueError(f"a console block may hold rlt commands only, not: {command}")
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(shown):
        main([*argv, *(["--in-process"] if argv[0] == "run" else [])])
    return shown.getvalue()


@contextmanager
def plugin_of(page: str) -> Iterator[None]:
    """Has the plugin that a page writes out installed for a while; nothing for other pages."""
    code, project = PLUGIN.search(page), PROJECT.search(page)
    if code is None or project is None:
        yield
        return
    with TemporaryDirectory() as folder:
        _install(Path(folder), code.group(1), code.group(), project)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop(code.group(1), None)


def _install(folder: Path, module: str, code: str, project: re.Match[str]) -> None:
    """What pip would leave behind for the page's module and pyproject.toml."""
    folder.joinpath(f"{module}.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-{project['version']}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    info.joinpath("METADATA").write_text(metadata, encoding="utf-8")
    points = "[rlt]\n" + project["points"].replace('"', "")
    info.joinpath("entry_points.txt").write_text(points, encoding="utf-8")


def without_rates(output: str) -> str:
    """The output with every "12.3 tokens/s" made equal."""
    return RATE.sub("N tokens/s", output)


def written(page: str) -> str:
    """The page with the output of every command replaced by what it prints now."""

    def fill(match: re.Match[str]) -> str:
        found = commands(f"```console\n{match.group()}```")
        return "".join(f"$ {command}\n{_newer(output, run(command))}" for command, output in found)

    with plugin_of(page):
        return BLOCK.sub(fill, page)


def _newer(old: str, new: str) -> str:
    """The old output where only its rates differ, so that a rewrite changes what has changed."""
    return old if without_rates(old) == without_rates(new) else new


def write() -> None:
    """Fills all pages."""
    for name in PAGES:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write()
