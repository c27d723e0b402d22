"""Who may import whom, what starts without torch, and which names are public."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "rlt_core"

# Lowest first: a package imports only itself and packages of a lower level.
LEVELS = (
    {"contract"},
    {"plugins"},
    {"kv", "exits"},
    {"runtime"},
    {"schedule"},
    {"stage"},
    {"api"},
    {"bench", "evaluate", "server"},
    {"testing"},
    {"templates"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
HEAVY = ("torch", "transformers", "triton", "fastapi")
QUICK = ("contract", "plugins", "cli")
OURO_CONFIG = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "early_exit_threshold": 1.0,
    "eos_token_id": 0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "total_ut_steps": 4,
    "vocab_size": 160,
}


def _imports(file: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, functions and type checking included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _package(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "rlt_core" and len(parts) > 1 and parts[1] in LEVEL else None


def test_imports_of_the_core_run_downwards() -> None:
    """Guards the order of the folders; a cycle between kv and runtime would start as one import."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted(CORE.rglob("*.py"))
        if (own := file.relative_to(CORE).parts[0]) in LEVEL
        for module in sorted(set(_imports(file)))
        if (other := _package(module)) and other != own and LEVEL[other] >= LEVEL[own]
    ]
    assert wrong == []


def test_every_package_of_the_core_has_a_level() -> None:
    """Guards the test above against a new package that it would not see."""
    packages = {file.parent.name for file in CORE.glob("*/__init__.py")}
    assert packages - set(LEVEL) == set()


def test_plugins_import_the_contract_only() -> None:
    """Guards the seam: a model that imports the scheduler could not be replaced or tested."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted(ROOT.glob("plugins/*/rlt_*/**/*.py"))
        for module in sorted(set(_imports(file)))
        if (other := _package(module)) and other != "contract"
    ]
    assert wrong == []


def test_what_must_start_quickly_imports_nothing_heavy_at_module_level() -> None:
    """Guards the lint exemptions: nobody may exempt the contract or the plugin system."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for package in QUICK
        for file in sorted((CORE / package).rglob("*.py"))
        for name in _module_level(file)
        if name.partition(".")[0] in HEAVY
    ]
    assert wrong == []


def _module_level(file: Path) -> Iterator[str]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _heavy_after(code: str) -> list[str]:
    """What a fresh interpreter has imported after `code`."""
    report = (
        f"import sys, json; sys.stderr.write(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    names: list[str] = json.loads(done.stderr.splitlines()[-1])
    return names


def test_importing_rlt_imports_no_torch() -> None:
    """Guards `import rlt_core` and every plugin's module, which discovery imports."""
    code = (
        "import rlt_core, rlt_core.contract, rlt_core.plugins.resolve\n"
        "import rlt_ouro, rlt_nanbeige, rlt_huginn, rlt_kernels\n"
        "assert 'LLM' in dir(rlt_core)"
    )
    assert _heavy_after(code) == []


def test_listing_and_explaining_imports_no_torch(tmp_path: Path) -> None:
    """Guards `rlt --help`, `rlt plugins` and `rlt explain`: a tenth of a second, not four."""
    tmp_path.joinpath("config.json").write_text(json.dumps(OURO_CONFIG))
    commands = (
        ["--help"],
        ["run", "--help"],
        ["plugins"],
        ["plugins", "--json"],
        ["explain", str(tmp_path)],
        ["explain", str(tmp_path), "--json"],
    )
    code = "from rlt_core.cli import main\n" + "\n".join(
        f"assert main({command!r}) == 0, {command!r}" for command in commands
    )
    assert _heavy_after(code) == []


def test_a_client_imports_no_torch() -> None:
    """Guards the first request with n > 1 against a second's wait for torch, and options: torch's
    are known by their names alone."""
    code = (
        "import rlt_core\n"
        "from rlt_core.api.access import open_model\n"
        "from rlt_core.api.batch import Entry\n"
        "from rlt_core.api.requests import RequestBuilder\n"
        "from tests.scripted_engine import report\n"
        "access = open_model(rlt_core.LLM, None, None, {'dtype': 'float32'})\n"
        "builder = RequestBuilder(report(), access.defaults)\n"
        "params = rlt_core.SamplingParams(n=2, seed=7)\n"
        "entry = Entry('1 + 1', params, builder, access.tokenizer, range(2))\n"
        "assert [c.request.seed for c in entry.collectors] == [7, 1083837620075162896]\n"
    )
    assert _heavy_after(code) == []


@pytest.mark.parametrize(
    "name", ["rlt_core", *sorted(f"rlt_core.{f.parent.name}" for f in CORE.glob("*/__init__.py"))]
)
def test_all_is_exact(name: str) -> None:
    """Guards against a public name by accident, and against one that __all__ forgot."""
    module = importlib.import_module(name)
    listed: list[str] = list(getattr(module, "__all__", []))
    assert len(set(listed)) == len(listed)
    assert all(hasattr(module, public) for public in listed)
    public = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not isinstance(value, types.ModuleType)
        and key not in ("annotations", "TYPE_CHECKING")
    }
    assert public <= set(listed)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    """Guards the lazy look-up: `from rlt_core import LMM` must not be None."""
    import rlt_core

    with pytest.raises(AttributeError, match="LMM"):
        rlt_core.LMM  # noqa: B018  # the access is the test
    assert set(rlt_core.__all__) <= set(dir(rlt_core))
