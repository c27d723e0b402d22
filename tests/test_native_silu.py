"""`native.silu_mul`: chosen where it was built, passed over and said where not, without a GPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from rlt_core.cli import main
from rlt_core.contract import Extra, OpSpec
from rlt_core.contract.errors import ConflictError
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve
from tests.engines import GOLDEN
from tests.plugin_kit import candidate, registry_of

LACK = "not built (RLT_BUILD_CUDA=1 pip install"
NAME = "native.silu_mul"


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install without the library; where it would lie."""
    place = tmp_path / "librlt_native.so"
    monkeypatch.setattr("rlt_kernels.native.LIBRARY", place)
    return place


@pytest.fixture
def present(absent: Path) -> Path:
    """An install with a library, which is never loaded here."""
    absent.touch()
    return absent


def _plan(op: str | None = None, dtype: str = "bfloat16", device: str = "cuda") -> Plan:
    ops = {"silu_mul": op} if op else {}
    path = str(GOLDEN / "ouro_a")
    return resolve(Choice(model_path=path, device=device, dtype=dtype, ops=ops), discover())


def test_built_it_is_taken(present: Path) -> None:
    """It is exact, so nothing but the build has to be asked for; another may be named."""
    plan = _plan()
    assert plan.ops["silu_mul"].id == NAME
    assert not any("passed over" in note for note in plan.notes)
    assert _plan("triton.silu_mul").ops["silu_mul"].id == "triton.silu_mul"


def test_built_or_not_float32_is_the_other_s(present: Path) -> None:
    """A dtype that the source has no kernel for."""
    assert _plan(dtype="float32").ops["silu_mul"].id == "triton.silu_mul"


def test_absent_the_fallback_is_taken_and_said(absent: Path) -> None:
    """A silent fallback: whoever asked pip for the build would never know."""
    plan = _plan()
    assert plan.ops["silu_mul"].id == "triton.silu_mul"
    (note,) = [note for note in plan.notes if NAME in note]
    assert note.startswith(f"operator {NAME} is passed over: {LACK}")


def test_absent_by_name_it_is_refused(absent: Path) -> None:
    """An import error at build time in place of a sentence with the command."""
    with pytest.raises(ConflictError) as caught:
        _plan(NAME)
    (conflict,) = caught.value.conflicts
    assert conflict.right == "this machine"
    assert conflict.reason.startswith(LACK)
    assert caught.value.fixes[0] == f"(without --op silu_mul={NAME})"


def test_nothing_is_said_where_it_could_not_run(absent: Path) -> None:
    """Advice to build for a GPU on a plan for the CPU."""
    assert not any(NAME in note for note in _plan(device="cpu").notes)
    assert not any(NAME in note for note in _plan("triton.silu_mul").notes)


def test_explain_and_doctor_say_it(absent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards both places where somebody looks; neither is an error."""
    argv = ["explain", str(GOLDEN / "ouro_a"), "--device", "cuda", "--dtype", "bfloat16"]
    assert main(argv) == 0
    assert f"{NAME} is passed over: {LACK}" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    facts = {fact["what"]: fact for fact in json.loads(capsys.readouterr().out)["facts"]}
    assert facts[f"operator {NAME}"]["found"] == "absent"
    assert facts[f"operator {NAME}"]["remark"].startswith(LACK)
    absent.touch()
    assert main(["doctor", "--json"]) == 0
    facts = {fact["what"]: fact for fact in json.loads(capsys.readouterr().out)["facts"]}
    assert facts[f"operator {NAME}"]["found"] == "built"
    assert not facts[f"operator {NAME}"]["remark"]


def test_extra_must_be_an_extra() -> None:
    """A plugin that gives a text: every look at it would fail with a Python error."""
    spec = OpSpec(
        id="x.linear",
        op="linear",
        factory="a:B",
        devices=("cpu",),
        dtypes=("float32",),
        exact=True,
        extra="built",  # type: ignore[arg-type]  # wrong on purpose
    )
    registry = registry_of(candidate("x", rlt_ops=lambda: [spec]))
    assert "extra is no Extra" in str(registry.broken[0].reason)
    good = Extra(found=None, lack="absent", fix="pip install x")
    assert good.found is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (torch.zeros(2, 7, dtype=torch.bfloat16), r"\[2, 7\] does not fit: wanted \[R, 2 F\]"),
        (torch.zeros(8, dtype=torch.bfloat16), r"\[8\] does not fit"),
        (torch.zeros(2, 8), "is torch.float32; it takes bfloat16 and float16"),
        (torch.zeros(8, 2, dtype=torch.float16).T, r"strides \[1, 2\]: its columns must be cont"),
        (torch.zeros(2, 16, dtype=torch.float16)[:, ::2], "its columns must be contiguous"),
        (torch.zeros(2, 8, dtype=torch.float16), "lies on cpu; it runs on a CUDA device"),
    ],
)
def test_what_does_not_fit_is_named(rows: torch.Tensor, said: str) -> None:
    """A kernel that reads another row's values, or past the end, without a word."""
    from rlt_kernels.native.silu import silu_mul

    with pytest.raises(ValueError, match=f"native.silu_mul: gate_up .*{said}"):
        silu_mul(rows)
