"""A model's own options as a plugin declares them and the command line shows and takes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.llm import LLM
from rlt_core.cli import main, run_request
from rlt_core.cli.options import parse_extra
from rlt_core.contract.errors import OptionError, PluginError
from rlt_core.contract.specs import ExitPolicySpec, ModelSpec, ParamSpec
from rlt_core.plugins.check_spec import spec_faults
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.resolve import resolve
from rlt_core.testing.tiny import OPTIONS, PLAIN_SPEC, SPEC, tiny_shape
from rlt_core.testing.tiny_model import write_checkpoint
from rlt_core.testing.tiny_plugin import registry_with_tiny
from tests.test_options_api import PROMPT, SIZES, params, tokens


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "two words"}, "a name is an identifier"),
        ({"kind": "depths"}, "kind 'depths' is not one of float, int, flag, table"),
        ({"default": None}, "None is no default for kind 'float'"),
        ({"kind": "flag", "default": 0}, "0 is no default for kind 'flag'"),
        ({"kind": "table", "default": 1.0}, "1.0 is no default for kind 'table'"),
        ({"name": "state_seed"}, "keys the random bits"),
    ],
)
def test_options_that_a_plugin_declares_wrongly(changes: dict[str, Any], reason: str) -> None:
    """Found at discovery, as the plugin's error; a request would find it too late."""
    option = replace(OPTIONS[1], **changes)
    assert any(reason in fault for fault in spec_faults(replace(SPEC, options=(option,))))
    assert not list(spec_faults(SPEC))


def test_what_only_models_declare() -> None:
    """Policies take numbers: a flag of theirs would never arrive. Names are used once, and the
    reader of a model with tables must say how wide they are."""
    param = ParamSpec(name="x", kind="flag", summary="", default=False)
    policy = ExitPolicySpec(id="p", summary="", factory="a.b:C", params=(param,))
    assert any("of a kind that models have" in fault for fault in spec_faults(policy))
    twice: ModelSpec = replace(SPEC, options=(OPTIONS[1], OPTIONS[1]))
    assert any("used once" in fault for fault in spec_faults(twice))
    narrow = replace(tiny_shape("a"), table_widths={})
    with pytest.raises(PluginError, match=r"table_widths\['state_table'\]"):
        resolve(Choice(model="tiny"), registry_with_tiny(), shape=narrow)
    assert PLAIN_SPEC.options == ()


def test_extra_on_the_command_line() -> None:
    """Numbers and truth values as such, other text as it stands (a path)."""
    given = ["state_scale=0", "warm_start=true", "state_table=a=b.npy", "state_seed=5"]
    assert parse_extra(given) == {
        "state_scale": 0,
        "warm_start": True,
        "state_table": "a=b.npy",
        "state_seed": 5,
    }
    for text in ("state_scale", "=1", "state_scale="):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            parse_extra([text])


def test_explain_and_plugins_show_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A user finds names, kinds, ranges and defaults without reading the plugin."""
    import rlt_core.cli.explain as explain
    import rlt_core.cli.plugins as plugins

    folder = write_checkpoint(tmp_path / "a", "a")
    for module in (explain, plugins):
        monkeypatch.setattr(module, "discover", registry_with_tiny)
    assert main(["explain", str(folder)]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "model option" in line]
    assert len(shown) == len(OPTIONS)
    assert "float, at least 0, default 1" in shown[1]
    assert "flag, default false" in shown[3]
    assert main(["explain", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["model_options"]
    assert [option["name"] for option in listed] == [spec.name for spec in OPTIONS]
    assert main(["plugins"]) == 0
    assert "options of tiny: state_seed, state_scale, state_table" in capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    found = {p["name"]: p for p in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["tiny"]["model_options"]["tiny"][3]["chains"] is True
    assert found["tiny"]["model_options"]["tiny_plain"] == []


def test_rlt_run_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command line gives what the Python object gives; a wrong option is two lines."""
    from rlt_core.cli import run_session as session

    monkeypatch.setattr(run_request, "find_model_folder", lambda name: name)
    folder, factory = write_checkpoint(tmp_path / "a", "a"), "tests.test_options_api:build"
    monkeypatch.setattr(session, "LLM", lambda *a, **o: LLM(*a, **o, engine_factory=factory))
    argv = ["run", str(folder), "--prompt-token-ids", "3,77,140,9,5", "--in-process", "--json"]
    argv += ["--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--kv-pages", "300"]
    assert main([*argv, "--extra", "state_scale=0", "--extra", "warm_start=true"]) == 0
    found = json.loads(capsys.readouterr().out)["token_ids"]
    asked = params(extra={"state_scale": 0.0, "warm_start": True})
    with LLM(folder, in_process=True, engine_factory=factory, **SIZES) as llm:
        assert [found] == tokens(llm.generate([PROMPT], asked, progress=False))
    assert main([*argv, "--extra", "state_scal=0"]) == 2
    said = capsys.readouterr().err
    assert "state_scal: model 'tiny' has no such option (did you mean state_scale" in said
