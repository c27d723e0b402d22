"""Five distributions: they build, hold what they should, and the core wants one plugin only."""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest
from safetensors.numpy import load_file

from tests.fresh import PROJECTS, ROOT, Built, Environment

GOLDEN = ROOT / "tests" / "golden" / "ouro_a"
ALLOWED = {
    "torch",
    "transformers",
    # Reads tokenizer.json without importing transformers, which takes seconds. transformers
    # depends on it anyway, so that an install grows by nothing.
    "tokenizers",
    "jinja2",
    "safetensors",
    "numpy",
    "pluggy",
    "typer",
    "rich",
    "msgspec",
    "pyzmq",
    # What `rlt serve` is made of: schemas and errors, the server, the bound on a request's head,
    # metrics, and grammars of answers. Together a few megabytes.
    "fastapi",
    "uvicorn",
    "h11",
    "prometheus-client",
    "llguidance",
    "rlt-core",
}


def _requirements(distribution: str) -> set[str]:
    """Names of what a plain install brings along, extras left out."""
    lines = metadata.requires(distribution) or []
    plain = [line for line in lines if "extra ==" not in line]
    return {re.split(r"[^A-Za-z0-9_-]", line, maxsplit=1)[0] for line in plain}


@pytest.mark.parametrize("name", PROJECTS)
def test_dependencies_are_the_agreed_ones(name: str) -> None:
    """Guards the size of an install: triton alone would double it, and one plugin is made of it."""
    allowed = ALLOWED | {"triton"} if name == "rlt-kernels" else ALLOWED
    assert _requirements(name) <= allowed


@pytest.mark.parametrize("name", [name for name in PROJECTS if name != "rlt-core"])
def test_a_plugin_pins_the_core_s_minor_version(name: str) -> None:
    """Guards against a plugin that meets a contract it was not written for."""
    pins = [line for line in metadata.requires(name) or [] if line.startswith("rlt-core")]
    assert {"".join(sorted(pins[0].removeprefix("rlt-core").split(",")))} == {"<0.2>=0.1"}


def test_the_changelog_knows_the_version() -> None:
    """Guards a release without a word for its users."""
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == metadata.version("rlt-core")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_wheels_and_sdists_hold_what_they_should(built: Built) -> None:
    """Guards the archives: typed, with the demo, and without tests, training or other packages."""
    for name in PROJECTS:
        package = name.replace("-", "_")
        names = built.wheel_names(name)
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
        assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {package}
        assert {"pyproject.toml", "README.md"} <= built.sdist_names(name)
        assert built.about(name)["License-Expression"] == "Apache-2.0"
        assert built.about(name)["Requires-Python"] == ">=3.10"
    core = built.wheel_names("rlt-core")
    sources = {str(f.relative_to(ROOT)) for f in (ROOT / "rlt_core").rglob("*.py")}
    assert sources <= core
    assert any(name.endswith("/licenses/LICENSE") for name in core)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_is_in_the_wheel_and_the_training_only_in_the_sdist(built: Built) -> None:
    """Guards the demo model's files: without one of them `rlt run` has nothing to run."""
    demo = {
        f"rlt_ouro/demo/{file.name}"
        for file in (ROOT / "plugins" / "rlt_ouro" / "rlt_ouro" / "demo").iterdir()
        if file.is_file()
    }
    assert {"rlt_ouro/demo/config.json", "rlt_ouro/demo/model.safetensors"} <= demo
    assert demo <= built.wheel_names("rlt-ouro")
    assert demo <= built.sdist_names("rlt-ouro")
    assert not any("training" in name for name in built.wheel_names("rlt-ouro"))
    assert "training/train.py" in built.sdist_names("rlt-ouro")


@pytest.mark.chance
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_core_alone_lists_no_model_and_says_what_to_install(
    built: Built, fresh: Environment
) -> None:
    """Guards the core's independence of the plugins that lie beside it in this repository."""
    fresh.install(built.wheel("rlt-core"))
    listed = json.loads(fresh.rlt("plugins", "--json").stdout)
    assert [plugin["name"] for plugin in listed["plugins"]] == ["core"]
    assert "No model is installed: pip install rlt-ouro" in fresh.rlt("plugins").stdout
    refused = fresh.rlt("run")
    assert refused.returncode == 2
    assert "pip install rlt-ouro" in refused.stderr
    assert len(refused.stderr.splitlines()) <= 4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_core_and_one_plugin_run_a_golden_checkpoint(built: Built, fresh: Environment) -> None:
    """Guards the wheels as a user gets them: the authors' greedy tokens, from installed files."""
    for name in ("rlt-core", "rlt-ouro"):
        fresh.install(built.wheel(name))
    golden = load_file(GOLDEN / "expected.safetensors")
    prompt = ",".join(str(int(token)) for token in golden["p0.ids"].ravel())
    done = fresh.rlt(
        *("run", str(GOLDEN), "--prompt-token-ids", prompt, "--max-tokens", "24"),
        *("--ignore-eos", "--temperature", "0", "--dtype", "float32", "--json"),
    )
    assert done.returncode == 0, done.stderr
    expected = [int(token) for token in golden["p0.gen.ids"].ravel()]
    assert json.loads(done.stdout)["token_ids"] == expected[-24:]
