"""`rlt plugins`, `rlt explain` and `rlt doctor`, and how errors leave the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import rlt_core.cli.app as app_module
from rlt_core.cli import main
from rlt_core.cli.app import build_app
from rlt_core.cli.options import choice_of, parse_ops
from rlt_core.contract.errors import OptionError
from tests.test_imports import OURO_CONFIG

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ouro(tmp_path: Path) -> str:
    """A folder with a config.json of Ouro and no weights."""
    path = tmp_path / "ouro"
    path.mkdir()
    path.joinpath("config.json").write_text(json.dumps(OURO_CONFIG))
    return str(path)


def _run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_plugins_lists_who_declares_what(capsys: Capture) -> None:
    """Guards the listing: what a plugin declares, its operators as a number."""
    code, out, err = _run(capsys, "plugins")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line and line[0] != " "}
    assert "models: ouro" in lines["ouro"]
    assert "models: nanbeige" in lines["nanbeige"]
    assert "models: huginn" in lines["huginn"]
    assert "attention backends: triton" in lines["kernels"]
    assert re.search(r"operators: \d+ candidates \(rlt plugins --ops\)", out)
    assert "kv layouts: last_exited, shared, last_step" in lines["core"]


def test_plugins_as_json_holds_everything(capsys: Capture) -> None:
    """Guards the machine's view: version, state, hooks and ids of every plugin."""
    code, out, _ = _run(capsys, "plugins", "--json")
    plugins = {plugin["name"]: plugin for plugin in json.loads(out)["plugins"]}
    assert code == 0
    by_state, by_logits = ["latent", "cosine"], ["entropy", "kl", "minp_kl", "argmax"]
    policies = ["fixed", "gate", *by_state, *by_logits, "trace"]
    assert plugins["core"]["exit_policies"] == policies
    assert plugins["core"]["hooks"] == sorted(plugins["core"]["hooks"])
    assert plugins["ouro"]["models"] == ["ouro"]
    assert plugins["kernels"]["state"] == "ok"
    assert plugins["huginn"]["distribution"] == "rlt-huginn"


def _distribution(folder: Path, name: str, source: str) -> None:
    (folder / f"rlt_{name}.py").write_text(source)
    about = folder / f"rlt_{name}-0.4.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rlt-{name}\nVersion: 0.4\n"
    )
    about.joinpath("entry_points.txt").write_text(f"[rlt]\n{name} = rlt_{name}\n")


def test_a_broken_plugin_is_listed_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Guards against one broken plugin taking every command down."""
    _distribution(tmp_path, "snapped", "import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = _run(capsys, "plugins")
    assert code == 0
    assert "rlt-snapped 0.4" in out
    assert "broken" in out
    assert "nowhere_at_all" in out
    assert main(["--help"]) == 0


DUPLICATE = """
from rlt_core.contract import KVLayoutSpec, hookimpl

@hookimpl
def rlt_kv_layouts():
    return [KVLayoutSpec(id="shared", summary="", factory="a:B", provides=frozenset())]
"""


def test_a_clash_is_listed_and_fails_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, ouro: str
) -> None:
    """Guards two plugins with one id: both are named, and RLT_BLOCK settles it."""
    _distribution(tmp_path, "twin", DUPLICATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = _run(capsys, "plugins")
    assert code == 2
    assert "rlt-twin 0.4" in out
    assert "rlt-twin 0.4" in err
    assert "RLT_BLOCK=twin" in err
    assert _run(capsys, "explain", ouro)[0] == 2
    monkeypatch.setenv("RLT_BLOCK", "twin")
    assert _run(capsys, "plugins")[0] == 0
    assert _run(capsys, "explain", ouro)[0] == 0


def test_without_a_model_plugin_the_listing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Guards the core alone: no model, and the command that brings one."""
    monkeypatch.setenv("RLT_BLOCK", "ouro,nanbeige,huginn")
    _, out, _ = _run(capsys, "plugins")
    assert "No model is installed: pip install rlt-ouro" in out
    code, _, err = _run(capsys, "explain")
    assert code == 2
    assert "no model is installed" in err
    assert len(err.splitlines()) <= 4


def test_a_block_that_blocks_nothing_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Guards against a misspelt RLT_BLOCK that seems to work."""
    monkeypatch.setenv("RLT_BLOCK", "oruo")
    assert "cannot be blocked: oruo" in _run(capsys, "plugins")[1]


def test_explain_prints_the_plan(capsys: Capture, ouro: str) -> None:
    """Guards the plan's page: every part with its plugin and version, and what was picked."""
    code, out, err = _run(capsys, "explain", ouro, "--kv-layout", "last_step")
    assert (code, err) == (0, "")
    for said in ("rlt-ouro 0.1.0", "last_step", "KV of a token", "refill: the default"):
        assert said in out


def test_explain_as_json_is_one_document(capsys: Capture, ouro: str) -> None:
    """Guards the document, and the KV bytes: 3 layers x 4 heads x 16 x 2 x 4 bytes a plane."""
    code, out, _ = _run(capsys, "explain", ouro, "--kv-layout", "last_step", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["works"] is True
    assert plan["model"] == {"id": "ouro", "distribution": "rlt-ouro", "version": "0.1.0"}
    assert plan["kv_bytes_per_token"] == {"while the prompt runs": 6144, "afterwards": 1536}


def test_explain_lists_every_conflict_and_a_fix(capsys: Capture, ouro: str) -> None:
    """Guards the refusal: exit code 2, both sides, flags that can be typed as they are."""
    asked = ("explain", ouro, "--kv-layout", "shared", "--exit-mode", "full", "--page-size", "24")
    code, out, err = _run(capsys, *asked)
    assert (code, out) == (2, "")
    assert "exit mode 'full' and KV layout 'shared' (rlt-core 0.1.0)" in err
    assert "--page-size 16 --exit-mode skip" in err
    code, out, _ = _run(capsys, *asked, "--json")
    answer = json.loads(out)
    assert (code, answer["works"], answer["error"]) == (2, False, "ConflictError")
    assert len(answer["conflicts"]) == 2
    fix = answer["fixes"][0].split()
    assert _run(capsys, *asked, *fix)[0] == 0


def test_explain_ignores_weights_that_are_damaged(capsys: Capture, ouro: str) -> None:
    """Guards the promise that explaining reads no weight."""
    Path(ouro, "model.safetensors").write_bytes(b"not tensors")
    assert _run(capsys, "explain", ouro)[0] == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["explain", "--page-size", "many"],
        ["explain", "--exit-mode", "half"],
        ["explain", "--exact", "maybe"],
        ["explain", "--no-such-option"],
        ["explain", "a", "b"],
        ["expain"],
        ["explain", "--op", "linear"],
        ["explain", "--device", "tpu"],
        ["explain", "no/such/folder"],
    ],
)
def test_bad_input_gets_a_few_lines_and_exit_code_2(argv: list[str], capsys: Capture) -> None:
    """Guards 'What bad input gets': no traceback, no page of help."""
    code, out, err = _run(capsys, *argv)
    assert (code, out) == (2, "")
    assert 1 <= len([line for line in err.splitlines() if line.strip()]) <= 4
    assert "Traceback" not in err


def test_an_unknown_command_is_suggested(capsys: Capture) -> None:
    """Guards the nearest name for commands, too."""
    assert "Did you mean 'explain'?" in _run(capsys, "explane")[2]


def test_version_is_the_package_s(capsys: Capture) -> None:
    """Guards a version that is written twice."""
    from importlib import metadata

    assert _run(capsys, "--version")[1] == f"rlt-core {metadata.version('rlt-core')}\n"


def _app_with(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    def build() -> typer.Typer:
        app = build_app()

        def fail() -> None:
            raise raised

        app.command("fail")(fail)
        return app

    monkeypatch.setattr(app_module, "build_app", build)


def test_a_fault_of_rlt_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the other half of the rule: only RltError is a message."""
    _app_with(monkeypatch, ZeroDivisionError("a fault"))
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards Ctrl-C: the shell's convention, no traceback."""
    _app_with(monkeypatch, KeyboardInterrupt())
    assert main(["fail"]) == 130


def test_an_error_in_a_command_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Guards the one place that catches."""
    _app_with(monkeypatch, OptionError("--speed", 0, "must be positive"))
    assert _run(capsys, "fail") == (2, "", "--speed 0: must be positive\n")


def test_doctor_says_what_is_there_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Guards the advice: a plugin that is not installed comes with its command."""
    code, out, _ = _run(capsys, "doctor")
    assert code == 0
    for said in ("python", "torch", "cores", "device cpu", "plugin ouro"):
        assert said in out
    code, out, _ = _run(capsys, "doctor", "--json")
    facts = {fact["what"]: fact for fact in json.loads(out)["facts"]}
    assert facts["plugin core"]["found"].startswith("rlt-core ")


def test_the_shared_options_make_a_choice() -> None:
    """Guards every flag's way into the choice that resolution checks."""
    given: dict[str, Any] = {
        "kv_layout": "shared",
        "exit_policy": "gate",
        "exit_mode": "full",
        "strategy": "cohort",
        "prompts": "chunked",
        "attention": "torch",
        "device": "cuda:1",
        "dtype": "bfloat16",
        "graphs": True,
        "page_size": 8,
        "max_depth": 3,
    }
    choice = choice_of(
        model="m", ops=["linear=torch.linear"], ignore_config=["rope_scaling"], **given
    )
    assert {name: getattr(choice, name) for name in given} == given
    assert choice.model_path == "m"
    assert choice.ops == {"linear": "torch.linear"}
    assert choice.ignore_config == {"rope_scaling"}


@pytest.mark.parametrize("text", ["linear", "=torch.linear", "linear=", ""])
def test_an_op_option_has_two_sides(text: str) -> None:
    """Guards `--op` against a pair that means nothing."""
    with pytest.raises(OptionError):
        parse_ops([text])


def test_output_that_is_closed_is_no_fault() -> None:
    """`rlt plugins >&-` ended in a traceback: Python has no stdout then."""
    code = (
        "import sys; sys.stdout = None; from rlt_core.cli import main; sys.exit(main(['plugins']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
