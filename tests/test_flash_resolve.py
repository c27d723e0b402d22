"""Attention backend `flash`: listed always, taken by name, refused by its limits; no GPU needed."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlt_core.cli import main
from rlt_core.contract.errors import ConflictError, OptionError, PluginError
from rlt_core.plugins.plan import Choice, Plan
from rlt_core.plugins.resolve import resolve
from rlt_core.stage import build
from tests import engines
from tests.flash_stand_in import install

FOUR, TWO = ("four", "4.0.0b3"), ("two", "2.8.3")
Start = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Installs packages for the rest of the test; with none, neither is there."""

    def start(*versions: tuple[str, str]) -> None:
        context = install(tmp_path / "site", *versions)
        context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))

    return start


def _plan(head_dim: int | None = None, **fields: Any) -> Plan:
    shape, _ = engines.load_model("ouro_a")
    if head_dim is not None:
        tracks = tuple(replace(track, head_dim=head_dim) for track in shape.tracks)
        shape = replace(shape, tracks=tracks)
    plain = {"model": "ouro", "device": "cuda", "dtype": "bfloat16", "exact": False}
    # Not the cached registry: what is installed is looked for at discovery.
    return resolve(Choice(**{**plain, **fields}), engines.registry.__wrapped__(), shape=shape)


def _refusal(**fields: Any) -> ConflictError:
    with pytest.raises(ConflictError) as caught:
        _plan(attention="flash", **fields)
    return caught.value


@pytest.mark.parametrize("versions", [(), (FOUR,), (TWO,)])
@pytest.mark.parametrize("exact", [True, False])
def test_nobody_gets_it_who_did_not_ask(
    installed: Start, versions: tuple[tuple[str, str], ...], exact: bool
) -> None:
    """A package that came with something else must change no bit and no speed unasked."""
    installed(*versions)
    assert _plan(exact=exact).attention.id == "triton"


def test_absent_it_is_refused_with_what_to_install(installed: Start) -> None:
    """An ImportError when the stage starts."""
    installed()
    error = _refusal()
    (conflict,) = error.conflicts
    assert conflict.right == "this machine"
    assert conflict.reason.startswith("neither flash-attn-4 nor flash-attn is installed (pip inst")
    assert "--attention triton" in error.fixes


def test_a_package_that_is_too_old_is_named(installed: Start) -> None:
    """A release whose logarithms have another shape."""
    installed(("two", "2.5.6"))
    (conflict,) = _refusal().conflicts
    assert conflict.reason.startswith("flash-attn 2.5.6 is older than 2.7 (pip install")


@pytest.mark.parametrize(("versions", "page"), [((FOUR,), 64), ((TWO,), 256), ((FOUR, TWO), 64)])
def test_present_it_is_taken_by_name(
    installed: Start, versions: tuple[tuple[str, str], ...], page: int
) -> None:
    """Guards the pick: 4 before 2, and pages of the size that it takes, which is said."""
    installed(*versions)
    plan = _plan(attention="flash")
    assert plan.attention.id == "flash"
    assert plan.attention.extra is not None
    assert str(plan.attention.extra.found).startswith("flash-attn-4" if page == 64 else "flash-a")
    assert plan.choice.kv_page_size == page
    said = "page size 256: what attention flash allows"
    assert (said in plan.notes) is (page == 256)


@pytest.mark.parametrize("versions", [(FOUR,), (TWO,)])
def test_exact_results_are_refused_with_what_to_do(
    installed: Start, versions: tuple[tuple[str, str], ...]
) -> None:
    """Its bits change with the rows beside a row, and that is the one thing promised by default."""
    installed(*versions)
    error = _refusal(exact=True)
    (conflict,) = error.conflicts
    assert conflict.right == "option --exact on"
    assert {"--exact off", "--attention triton"} <= set(error.fixes)


def test_the_pages_of_two(installed: Start) -> None:
    """CASES A100: flash-attn 2 refuses pages that are no multiple of 256 at its first call; and
    backends that read chunks of 128 keys must never see such a page."""
    installed(TWO)
    error = _refusal(page_size=64)
    assert str(error.conflicts[0]).endswith("option --page-size 64: it allows 256")
    assert error.fixes[0] == "--page-size 256"
    plan = _plan(page_size=256)
    assert plan.attention.id == "flash"
    assert any("triton does not fit: it allows 1, 2, 4" in note for note in plan.notes)
    with pytest.raises(ConflictError) as caught:
        _plan(page_size=256, exact=True, attention="triton")
    assert "triton" in caught.value.conflicts[0].left
    assert "option --page-size 256" in caught.value.conflicts[0].right


@pytest.mark.parametrize(
    ("version", "head_dim", "fits"),
    [(FOUR, 96, True), (FOUR, 88, False), (FOUR, 192, False)]
    + [(TWO, 88, True), (TWO, 256, True), (TWO, 100, False), (TWO, 264, False)],
)
def test_head_sizes(installed: Start, version: tuple[str, str], head_dim: int, fits: bool) -> None:
    """A size that its kernels were not made for, found by an assertion inside the package."""
    installed(version)
    if fits:
        assert _plan(head_dim, attention="flash").attention.id == "flash"
        return
    (conflict,) = _refusal(head_dim=head_dim).conflicts
    assert conflict.right == f"head size {head_dim}"


def test_dtype_device_and_layout(installed: Start) -> None:
    """16 bits, a GPU, and every key of the pool to be seen."""
    installed(FOUR)
    assert _refusal(dtype="float32").conflicts[0].right == "dtype float32"
    assert _refusal(device="cpu").conflicts[0].right == "option --device cpu"
    (conflict,) = _refusal(kv_layout="no_fill").conflicts
    assert "needs hidden_keys" in conflict.reason


@pytest.mark.parametrize("strategy", ["refill", "cohort", "pipeline", "adaptive"])
def test_every_strategy_has_it(installed: Start, strategy: str) -> None:
    """It can attend without writing, which guesses need."""
    installed(FOUR)
    assert _plan(attention="flash", strategy=strategy).attention.id == "flash"


@pytest.mark.parametrize(
    ("version", "chip", "said"),
    [
        (FOUR, (8, 0), "needs compute capability 9.0; this GPU has 8.0"),
        (FOUR, (12, 0), "needs compute capability below 12.0; this GPU has 12.0"),
        (FOUR, (9, 0), ""),
        (FOUR, (10, 3), ""),
        (TWO, (7, 5), "needs compute capability 8.0; this GPU has 7.5"),
        (TWO, (8, 0), ""),
        (TWO, (12, 0), ""),
    ],
)
def test_chips(
    installed: Start,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[str, str],
    chip: tuple[int, int],
    said: str,
) -> None:
    """4 walks no pages on Ampere and on consumer Blackwell: an assertion while the first tick is
    captured, after the weights were read."""
    installed(version)
    plan = replace(_plan(attention="flash"), ops={})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: chip)
    if not said:
        build.check_capability(plan)
        return
    with pytest.raises(OptionError, match=said):
        build.check_capability(plan)


def test_it_is_listed_and_doctor_names_it(
    installed: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards both places where somebody looks for it, with and without the package."""
    installed()
    facts = _doctor(capsys)
    assert facts["found"] == "absent"
    assert "pip install flash-attn-4" in facts["remark"]
    assert main(["plugins"]) == 0
    assert "attention backends: triton, flash" in capsys.readouterr().out


def test_doctor_names_the_version(installed: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """Which of the two is used, where somebody has both."""
    installed(FOUR, TWO)
    assert _doctor(capsys) == {
        "what": "attention backend flash",
        "found": "flash-attn-4 4.0.0b3",
        "remark": "",
    }


def _doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    found: dict[str, str] = next(f for f in facts if f["what"] == "attention backend flash")
    return found


def test_a_package_that_cannot_be_called_is_named(installed: Start, tmp_path: Path) -> None:
    """A build for another torch, and a release with other arguments: both fail at start-up, with
    the package, its version and what is wrong."""
    pytest.importorskip("triton")
    from rlt_kernels.attention.flash_call import load_call

    installed(FOUR)
    package = tmp_path / "site" / "flash_attn" / "cute" / "__init__.py"
    package.write_text("def flash_attn_varlen_func(q, k, v, cu_seqlens_q, causal): ...\n")
    with pytest.raises(PluginError, match=r"flash-attn-4 4.0.0b3: .* takes no max_seqlen_q, "):
        load_call()
    del sys.modules["flash_attn.cute"]
    package.write_text("raise ImportError('undefined symbol: _ZN2at4')\n")
    with pytest.raises(PluginError, match="cannot be loaded: undefined symbol"):
        load_call()


def test_the_package_s_own_warning_is_not_shown(
    installed: Start, recwarn: pytest.WarningsRecorder
) -> None:
    """What flash-attn-4 4.0.0b36 warns about at its first call is no news to who runs a model.
    Other warnings are shown."""
    pytest.importorskip("triton")
    from rlt_kernels.attention.flash_call import load_call

    installed(FOUR)
    load_call()
    warnings.warn(
        "Argument aux_data (position 17) cannot be converted to a JitArgument", stacklevel=1
    )
    warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in recwarn.list] == ["another"]
