"""`rlt plugin new` and `rlt plugin example`: what they write works as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from rlt_core.cli import main
from rlt_core.contract.errors import OptionError
from rlt_core.templates.render import write_plugin
from tests.fresh import ROOT, Built, Environment, build_project
from tests.warm import Warm

GOLDEN = ROOT / "tests" / "golden" / "ouro_a"


def _texts(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def test_every_name_is_replaced(tmp_path: Path) -> None:
    """Guards against a file, a class or an id that keeps the template's name."""
    texts = _texts(write_plugin("rlt-two-words", tmp_path))
    assert set(texts) >= {"pyproject.toml", "README.md", "rlt_two_words/model.py"}
    told = "\n".join([*texts, *texts.values()])
    assert "mymodel" not in told.lower()
    assert 'two-words = "rlt_two_words"' in texts["pyproject.toml"]
    assert "class TwoWords:" in texts["rlt_two_words/model.py"]
    assert 'model_types=("two-words",)' in texts["rlt_two_words/__init__.py"]


def test_a_name_inside_the_template_s_words_is_no_trouble(tmp_path: Path) -> None:
    """Guards the replacement: one pass, so that a new name is not replaced again."""
    texts = _texts(write_plugin("mymodel2", tmp_path))
    assert 'name = "rlt-mymodel2"' in texts["pyproject.toml"]
    assert "mymodel22" not in "".join(texts.values())


@pytest.mark.parametrize("name", ["", "My Model", "1st", "a--b", "rlt-", "ümlaut", "a/b", "-a"])
def test_bad_names_are_refused(name: str, tmp_path: Path) -> None:
    """Guards the package's name: it must be one of a distribution and, with _, of a module."""
    with pytest.raises(OptionError) as error:
        write_plugin(name, tmp_path)
    assert error.value.option == "NAME"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["new", "example"])
def test_a_folder_that_cannot_be_written_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback, where a file stands in the folder's way."""
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "x")
    argv = ["new", "mine", "--dir", place] if command == "new" else ["example", "ouro", place]
    assert main(["plugin", *argv]) == 2
    told = capsys.readouterr().err
    assert "Not a directory" in told
    assert "Fix: another" in told


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards a package that somebody has worked on, and the names of installed plugins."""
    assert main(["plugin", "new", "mine", "--dir", str(tmp_path)]) == 0
    (tmp_path / "rlt-mine" / "README.md").write_text("mine", encoding="utf-8")
    assert main(["plugin", "new", "mine", "--dir", str(tmp_path)]) == 2
    assert (tmp_path / "rlt-mine" / "README.md").read_text(encoding="utf-8") == "mine"
    assert main(["plugin", "new", "ouro", "--dir", str(tmp_path)]) == 2
    assert not (tmp_path / "rlt-ouro").exists()
    assert main(["plugin", "example", "ouro", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "is there already" in told
    assert "is the name of an installed plugin" in told


def test_an_example_is_of_its_seed(tmp_path: Path) -> None:
    """Guards `rlt plugin example`: a folder that loads, the same for the same seed."""
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        command = ["plugin", "example", "ouro", str(tmp_path / name), "--seed", seed]
        assert main(command) == 0
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all((a[name] == b[name]).all() for name in a)
    assert any((a[name] != c[name]).any() for name in a)
    assert (tmp_path / "a" / "tokenizer.json").is_file()
    assert main(["plugin", "example", "nosuch", str(tmp_path / "d")]) == 2
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_package_passes_a_strict_type_checker(tmp_path: Path) -> None:
    """Guards the template's types against the contract that it is written for.

    With the options of `make check`, so that what that knows of torch is not found out again."""
    folder = write_plugin("typed", tmp_path)
    command = [sys.executable, "-m", "mypy", "--exclude", "tests/", str(folder)]
    env = {**os.environ, "MYPYPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.chance
@pytest.mark.timeout(600)
def test_its_wheel_beside_the_core_alone(built: Built, fresh: Environment, tmp_path: Path) -> None:
    """Guards an author's first hour: listed, checked, run and refused in the right ways, in an
    environment that holds the core's wheel and the new plugin's."""
    build_project(write_plugin("brandnew", tmp_path), tmp_path)
    fresh.install(built.wheel("rlt-core"))
    (wheel,) = tmp_path.glob("rlt_brandnew-*.whl")
    fresh.install(wheel)
    listed = json.loads(fresh.rlt("plugins", "--json").stdout)
    assert [plugin["name"] for plugin in listed["plugins"]] == ["core", "brandnew"]
    folder = tmp_path / "example"
    with Warm(fresh.python) as warm:
        checked = warm.rlt(["check", "brandnew", "--json"], tmp_path)
        made = warm.rlt(["plugin", "example", "brandnew", str(folder)], tmp_path)
        assert made.returncode == 0, made.stderr
        _runs(fresh, warm, folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    counts = json.loads(checked.stdout)["counts"]
    assert counts["failed"] == 0
    assert counts["passed"] > 30
    _is_refused(fresh, folder)


def _runs(fresh: Environment, warm: Warm, folder: Path) -> None:
    """Text, and depths that an exit policy of the core changes."""
    command = ["run", str(folder), "Hello", "--json", "--max-tokens", "6", "--ignore-eos"]
    plain = json.loads(fresh.rlt(*command, "--seed", "1").stdout)
    assert isinstance(plain["text"], str)
    assert plain["exit_depths"] == [4] * 6
    leave = ["--exit-policy", "latent", "--exit-threshold", "100", "--in-process"]
    early = warm.rlt([*command, *leave], folder)
    assert json.loads(early.stdout)["exit_depths"] == [4, 1, 1, 1, 1, 1]


def _is_refused(fresh: Environment, folder: Path) -> None:
    """What cannot work is refused with both sides named."""
    for command, told in (
        (("run", str(folder), "Hi", "--exit-policy", "gate"), "'brandnew'"),
        (("explain", str(folder), "--kv-layout", "shared", "--exit-mode", "full"), "'shared'"),
        (("run", str(GOLDEN), "Hi"), "pip install rlt-ouro"),
        (("run",), "none of the installed ones has a demo: brandnew"),
    ):
        done = fresh.rlt(*command)
        assert done.returncode == 2, (command, done.stdout, done.stderr)
        assert told in done.stderr, (command, done.stderr)
        assert len(done.stderr.splitlines()) <= 4, done.stderr
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "new_switch": 3}), encoding="utf-8")
    done = fresh.rlt("run", str(folder), "Hi")
    assert done.returncode == 2
    assert "new_switch" in done.stderr
