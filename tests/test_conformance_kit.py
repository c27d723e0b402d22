"""The conformance kit as a tool: its table of expected failures, its messages, its command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlt_core.cli import main
from rlt_core.contract.errors import CheckpointError, OptionError, UnknownNameError
from rlt_core.plugins import core
from rlt_core.plugins.discovery import Candidate, core_candidate
from rlt_core.plugins.registry import Registry, build_registry
from rlt_core.testing import conformance
from rlt_core.testing.checks.catalog import CHECKS
from rlt_core.testing.checks.kit import Kit
from rlt_core.testing.checks.plugin import heavy_after
from rlt_core.testing.tiny import SPEC
from tests.engines import GOLDEN
from tests.plugin_kit import candidate, given

SHARED = next(spec for spec in core.rlt_kv_layouts() if spec.id == "shared")
# A layout that fails one check, and passes those that read its tables.
BAD = replace(SHARED, id="bad", factory="tests.broken_parts:IdlePlane")
FAILS = "layout_planes_used"
NAMES = ("layout_tables", FAILS, "layout_reads_written", "layout_tokens")


def registry() -> Registry:
    """The core, and a plugin with the bad layout."""
    return build_registry([core_candidate(), candidate("bad", rlt_kv_layouts=lambda: [BAD])])


def outcomes(**options: Any) -> dict[str, Any]:
    """The outcomes of the bad layout's checks by name."""
    kit = Kit("bad", registry=registry(), **options)
    return {c.check.name: kit.run(c) for c in kit.cases if c.check.name in NAMES}


def test_a_fault_is_told_once() -> None:
    """Guards the reader: one fault must not fail all that comes after it."""
    found = outcomes()
    assert [name for name, o in found.items() if o.state == "failed"] == [FAILS]
    assert found["layout_tokens"].state == "skipped"
    assert FAILS in found["layout_tokens"].reason


def test_an_expected_failure_has_a_reason_and_is_strict() -> None:
    """Guards the table: an entry without a reason, of no check or that is over hides a fault."""
    found = outcomes(expected_failures={FAILS: "kept for the next version"})
    assert found[FAILS].state == "expected"
    assert found[FAILS].reason == "kept for the next version"
    assert outcomes(expected_failures={f"{FAILS}[bad]": "so"})[FAILS].state == "expected"
    over = outcomes(expected_failures={"layout_tables": "it was wrong once"})["layout_tables"]
    assert over.state == "failed"
    assert "take it out of the table" in over.got
    with pytest.raises(UnknownNameError) as unknown:
        outcomes(expected_failures={"layout_table": "why"})
    assert "layout_tables" in unknown.value.nearest
    with pytest.raises(OptionError):
        outcomes(expected_failures={FAILS: "  "})


def test_conformance_is_a_parametrized_test() -> None:
    """Guards `test_conforms = conformance("rlt-mymodel")`: readable ids, one result a check."""
    made = conformance("rlt-bad", registry=registry(), expected_failures={FAILS: "known"})
    (mark,) = made.pytestmark
    cases = {param.id: param.values[0] for param in mark.args[1]}
    assert "plugin_loads" in cases
    made(cases["layout_tables[bad]"])
    with pytest.raises(pytest.xfail.Exception, match="known"):
        made(cases[f"{FAILS}[bad]"])
    made(cases["layout_tokens[bad]"])  # an expected failure stops nothing
    strict = conformance("bad", registry=registry())
    cases = {param.id: param.values[0] for param in strict.pytestmark[0].args[1]}
    with pytest.raises(pytest.fail.Exception, match="every plane to be read"):
        strict(cases[f"{FAILS}[bad]"])
    with pytest.raises(pytest.skip.Exception, match=FAILS):
        strict(cases["layout_tokens[bad]"])


def test_a_broken_plugin_fails_its_load_and_nothing_else() -> None:
    """Guards an unknown hook: the reason comes from discovery, and no part is looked at."""
    module = candidate("bad", rlt_modules=lambda: [BAD])
    kit = Kit("bad", registry=build_registry([core_candidate(), module]))
    failed = [o for o in kit.outcomes() if o.state == "failed"]
    assert [o.id for o in failed] == ["plugin_loads"]
    assert "rlt_models" in failed[0].got


def _written(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Candidate:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return given("heavy", lambda: __import__(name))


@pytest.mark.slow
def test_a_plugin_that_imports_torch_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards `rlt --help`: seen in a fresh interpreter, as this one has torch already."""
    text = (
        "import torch\nfrom rlt_core import hookimpl\n"
        "@hookimpl\ndef rlt_kv_layouts():\n    return []\n"
    )
    heavy = _written(tmp_path, "rlt_heavy_plugin", text, monkeypatch)
    kit = Kit("heavy", registry=build_registry([core_candidate(), heavy]))
    failed = [o for o in kit.outcomes() if o.state == "failed"]
    assert [(o.id, o.got) for o in failed] == [("plugin_imports_light", "torch")]


@pytest.mark.slow
def test_a_reader_that_imports_torch_is_caught() -> None:
    """Guards `rlt explain`: the reader of these test models lies beside torch."""
    spec = replace(SPEC, reader="tests.broken_models:read_what_it_knows")
    heavy = candidate("bad", rlt_models=lambda: [spec])
    kit = Kit("bad", registry=build_registry([core_candidate(), heavy]))
    outcome = next(kit.run(c) for c in kit.cases if c.check.name == "reader_imports_light")
    assert (outcome.state, outcome.got) == ("failed", "torch")


@pytest.mark.slow
def test_the_kit_starts_without_torch_and_pytest() -> None:
    """Guards `rlt check` without pytest installed, and the start of `from rlt_core.testing`."""
    code = (
        "import sys; from rlt_core.testing import conformance\n"
        "assert 'torch' not in sys.modules and 'pytest' not in sys.modules\n"
        "sys.modules['pytest'] = None\n"
        "import rlt_core.testing.checks.kit, rlt_core.cli.check"
    )
    assert "torch" in heavy_after(code)


def test_a_plugin_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `rlt check` with a typing error: nearest name, list, exit code 2."""
    assert main(["check", "rlt-ourro"]) == 2
    said = capsys.readouterr().err
    assert "did you mean" in said
    assert "ouro" in said
    assert len(said.strip().splitlines()) <= 4


def test_weights_of_another_plugin_are_refused() -> None:
    """Guards `--weights` with a folder that another plugin reads: nothing would be checked."""
    with pytest.raises(CheckpointError, match="rlt check ouro"):
        Kit("core", weights=GOLDEN / "ouro_a")


def test_the_command_reports_and_exits_by_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards the table, --json and exit codes 0 and 1; few checks are run."""
    from rlt_core.testing.checks import kit

    monkeypatch.setattr(kit, "discover", registry)
    few = tuple(check for check in CHECKS if check.name in NAMES[:3])
    monkeypatch.setattr(kit, "CHECKS", few)
    assert main(["check", "bad"]) == 1
    said = capsys.readouterr().out
    assert f"failed  {FAILS}[bad]" in said
    assert "expected: 1 loops: every plane to be read" in said
    assert "2 passed, 1 failed" in said
    assert main(["check", "bad", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"passed": 2, "failed": 1, "expected": 0, "skipped": 0}
    assert {c["check"] for c in told["checks"]} == {*NAMES[:3]}
    monkeypatch.setattr(kit, "CHECKS", tuple(c for c in few if c.name != FAILS))
    assert main(["check", "bad"]) == 0


def test_check_runs_from_the_command_line() -> None:
    """Guards the entry point itself: usage in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "rlt_core.cli", "check"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "plugin" in done.stderr
