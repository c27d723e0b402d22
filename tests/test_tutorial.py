"""docs/writing_a_plugin.md does what it says, from its first command to its last."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fresh import ROOT, Built, Environment
from tests.tutorial import Tutorial, TutorialError, clean
from tests.warm import Warm

PAGE = ROOT / "docs" / "writing_a_plugin.md"


@pytest.mark.slow
@pytest.mark.chance
@pytest.mark.timeout(900)
def test_every_block_of_the_tutorial_runs(built: Built, fresh: Environment, tmp_path: Path) -> None:
    """Guards a newcomer's afternoon: the page is followed beside the core's wheel alone."""
    fresh.install(built.wheel("rlt-core"))
    folder = tmp_path / "clean"
    folder.mkdir()
    with Warm(fresh.python, clean()) as warm:
        kinds = Counter(Tutorial(fresh.python, folder, warm).run(PAGE.read_text(encoding="utf-8")))
    assert kinds["diff"] >= 6
    assert kinds["sh"] >= 6


@pytest.mark.slow
def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    """Guards the runner itself: a command, an output or a diff that is wrong must not pass."""
    tutorial = Tutorial(Path(sys.executable), tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    tutorial.run("```diff\n--- a.txt\n one\n-two\n+three\n```\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one\nthree\n"
    for page in (
        "```sh\nrlt nosuch\n```\n",
        "```sh\nls\n```\n",
        "```console\n$ rlt --version\nrlt-core 0.0\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
        "```diff\n--- a.txt\n-two\n+three\n```\n",
    ):
        with pytest.raises(TutorialError):
            tutorial.run(page)
    tutorial.run("```console\n$ rlt --help\n...\nCommands:\n...\n```\n")


def test_a_warm_command_tells_what_a_cold_one_does(tmp_path: Path) -> None:
    """Guards the shortcut: exit codes, both streams and the directory are the command's own."""
    with Warm(Path(sys.executable), imports="json") as warm:
        bad = warm.rlt(["run", "nosuch"], tmp_path)
        assert (bad.returncode, bad.stdout) == (2, "")
        assert "no such model folder" in bad.stderr
        assert warm.rlt(["plugin", "new", "odd"], tmp_path).returncode == 0
        assert (tmp_path / "rlt-odd").is_dir()
        assert warm.rlt(["--version"], tmp_path).stdout.startswith("rlt-core")
