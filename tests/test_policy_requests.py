"""The comparing policies as a user asks for them: defaults, ranges, every model that can."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from rlt_core import LLM, SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.runtime import logit_parts
from rlt_core.runtime.decide import Decider
from rlt_core.runtime.tick_rows import Batch
from tests.selection import mostly_slow

GOLDEN = Path(__file__).parent / "golden"
PROMPT = {"prompt_token_ids": [5, 9, 2, 7]}


def serve(model: str, policy: str) -> LLM:
    return LLM(str(GOLDEN / model), exit_policy=policy, in_process=True, max_num_seqs=2)


def depths(llm: LLM, threshold: float | None) -> list[int]:
    """Exit depths of six greedy tokens."""
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, exit_threshold=threshold)
    (output,) = llm.generate(PROMPT, params)
    assert output.error is None
    return output.exit_depths


@pytest.mark.parametrize("model", mostly_slow(["ouro_a", "nanbeige_b", "huginn_a"], "nanbeige_b"))
@pytest.mark.parametrize("policy", ["latent", "kl"])
def test_any_model_that_shows_it(model: str, policy: str) -> None:
    """A state wider than what is shown, a model without a coda, one without a gate: each leaves at
    its first loop under a huge threshold and never under a tiny one."""
    with serve(model, policy) as llm:
        deep = depths(llm, 1e-9)
        assert len(set(deep)) == 1
        assert depths(llm, 1e9) == [deep[0], 1, 1, 1, 1, 1]


def test_the_checkpoint_s_threshold_is_the_gate_s() -> None:
    """Ouro's config.json has early_exit_threshold 1: as argmax's count it left at loop 2 or 3."""
    with serve("ouro_a", "argmax") as llm:
        assert depths(llm, None) == [4] * 6
        assert min(depths(llm, 1)) < 4
    with serve("ouro_a", "latent") as llm:
        assert depths(llm, None) == [4] * 6
        assert depths(llm, 1.0) != [4] * 6


@pytest.mark.parametrize(
    ("policy", "bad", "words"),
    [
        ("latent", 0.0, "it must be above 0"),
        ("kl", -1.0, "it must be above 0"),
        ("argmax", 0.0, "it must be at least 1"),
        ("argmax", 1.5, "not a whole number"),
    ],
)
def test_thresholds_out_of_range(policy: str, bad: float, words: str) -> None:
    """A threshold of 0 never leaves and half a loop is none: the request says so."""
    with serve("ouro_a", policy) as llm, pytest.raises(RequestError) as error:
        depths(llm, bad)
    assert error.value.field == "exit_threshold"
    assert words in error.value.reason


@pytest.mark.parametrize("model", ["ouro_a", "nanbeige_b"])
def test_distributions_are_compared_in_parts_that_fit(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position of a scored text asks the policy in one tick, and each takes several
    vocabularies' room: more than a GPU's pool leaves free."""
    sizes: list[int] = []
    before = Decider._decide

    def noted(self: Decider, asking: Batch, signals: dict[str, Tensor]) -> Tensor:
        sizes.append(len(asking.slot))
        return before(self, asking, signals)

    monkeypatch.setattr(Decider, "_decide", noted)
    text, params = [(7 * i) % 97 for i in range(24)], SamplingParams(exit_threshold=1.0)
    with serve(model, "kl") as llm:
        whole = llm.score(text, prompt_len=2, sampling_params=params)
        assert max(sizes) > 7
        assert len(set(whole.exit_depths[3:])) > 1, "the rows part in depth"
        size = logit_parts.PART_PEAK * 4 * llm.report.vocab_size
        monkeypatch.setattr(logit_parts, "PART_BYTES", 7 * size)
        sizes.clear()
        parts = llm.score(text, prompt_len=2, sampling_params=params)
    assert max(sizes) == 7
    assert (parts.logprobs, parts.exit_depths) == (whole.logprobs, whole.exit_depths)
