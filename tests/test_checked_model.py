"""A model that does not keep the contract's shapes is told so in a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlt_core.contract.errors import PluginError
from rlt_core.runtime.checked_model import CheckedModel
from rlt_core.testing.tiny_model import TinyModel, make_tiny
from tests.engines import Setup, build, greedy, plan_of, run_together


def _broken(method: str, result: Callable[[Any], Any]) -> TinyModel:
    """The tiny model with one method whose result is changed."""
    model = make_tiny("a")[1]
    right = getattr(model, method)
    setattr(model, method, lambda *args, **options: result(right(*args, **options)))
    return model


GATE = {"exit_threshold": 0.5}
FAULTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "narrow prelude": ("prelude", lambda x: x[:, :5], "prelude returned float32"),
    "narrow loop": ("loop", lambda x: x[:, :5], "loop returned float32"),
    "double loop": ("loop", lambda x: x.double(), "loop returned float64"),
    "short coda": ("coda", lambda x: x[:-1], "coda returned float32"),
    "half head": ("head", lambda x: x.bfloat16(), "head returned bfloat16"),
    "few logits": ("head", lambda x: x[:, :7], "head returned float32"),
    "no head": ("head", lambda x: None, "head returned NoneType"),
    "no signal": ("signals", lambda x: {}, "declares the signal gate; signals gave none"),
    "one gate": ("signals", lambda x: {"gate": x["gate"][0]}, "signal gate is float32 []"),
    "a list": ("signals", list, "signals returned list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_result_names_the_method(fault: str) -> None:
    """Guards authors: without the check, few logits gave wrong tokens and no error at all."""
    method, result, told = FAULTS[fault]
    setup = Setup(model="tiny_a", policy="gate")
    with pytest.raises(PluginError, match="TinyModel") as error:
        run_together(
            build(setup, _broken(method, result)),
            [greedy(0, [1, 2, 3], 2, setup, exit_params=GATE)],
        )
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) <= 4


def test_a_missing_method_is_named() -> None:
    """Guards the build of an engine: no tick is run with half a model."""

    class Half:
        def prelude(self, tokens: torch.Tensor, ctx: Any) -> torch.Tensor:
            return tokens

    with pytest.raises(PluginError, match="has no method loop, signals, coda, head"):
        CheckedModel(Half(), plan_of(Setup(model="tiny_a")))  # type: ignore[arg-type]  # half


def test_a_right_model_passes_unchanged() -> None:
    """Guards the check itself: it must not change a result."""
    setup = Setup(model="tiny_a", policy="gate")
    found = run_together(build(setup), [greedy(0, [1, 2, 3], 3, setup, exit_params=GATE)])[0]
    assert len(found.tokens) == 3
