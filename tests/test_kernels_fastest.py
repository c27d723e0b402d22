"""`--exact off`: the library's products where they are the faster ones; no GPU is needed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import discover
from rlt_core.plugins.resolve import resolve
from tests.engines import GOLDEN

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.mark.parametrize(("exact", "wanted"), [(True, "triton"), (False, "fastest")])
def test_who_makes_the_products(exact: bool, wanted: str) -> None:
    """Guards exactness by default: what may be the library's is a candidate with `off` alone."""
    choice = Choice(model_path=str(GOLDEN / "ouro_a"), device="cuda", dtype="bfloat16", exact=exact)
    plan = resolve(choice, discover())
    for op in ("linear", "linear_silu_mul"):
        assert plan.ops[op].id == f"{wanted}.{op}"
    assert plan.ops["rms_norm"].id == "triton.rms_norm"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """fastest with a scripted clock: `own` and `library` microseconds; `calls` of the clock."""
    from rlt_kernels import fastest, products

    script: dict[str, Any] = {"own": 2.0, "library": 1.0, "calls": 0, "capturing": False}

    def time_of(product: Any, x: Any, weight: Any) -> float:
        script["calls"] += 1
        return float(script["own" if product is products.linear else "library"])

    monkeypatch.setattr(fastest, "_chosen", {})
    monkeypatch.setattr(fastest, "time_of", time_of)
    monkeypatch.setattr(products, "linear", lambda x, w, bias=None, rows=None: "own")
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: script["capturing"], raising=False
    )
    return script


def test_each_shape_is_timed_once(timed: dict[str, Any]) -> None:
    """Guards the choice: by shape and bucket of rows, kept, and never made while capturing."""
    from rlt_kernels.fastest import linear

    x, weight = torch.ones(3, 4), torch.ones(2, 4)
    timed["capturing"] = True
    assert linear(x, weight) == "own"
    assert timed["calls"] == 0
    timed["capturing"] = False
    assert torch.equal(linear(x, weight), torch.full((3, 2), 4.0))
    assert timed["calls"] == 2
    timed["capturing"], timed["own"] = True, 0.5
    assert torch.equal(linear(x[:2], weight), torch.full((2, 2), 4.0))
    timed["capturing"] = False
    assert linear(torch.ones(300, 4), weight) == "own"
    assert timed["calls"] == 4


def test_a_product_is_timed_behind_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a choice by products alone: those that begin before the kernel in front has ended look
    slower than they are in a layer."""
    from rlt_kernels import fastest

    ran: list[str] = []

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ran.append("norm")
        return x

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ran.append("product")
        return x

    monkeypatch.setattr(fastest, "rms_norm", norm)
    monkeypatch.setattr(fastest, "graph_micros", lambda launch, launches: float(launch(1) or 7))
    assert fastest.time_of(product, torch.ones(3, 4), torch.ones(2, 4)) == 7
    assert ran == ["norm", "product"]
