"""Every "yes" of the README's tables is run, on small checkpoints with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from docs.capabilities import FEATURES, layout_choices, policy_choices, refusal
from docs.generate import registry_of_ours
from rlt_core import LLM, SamplingParams
from rlt_core.api.outputs import RequestOutput
from rlt_core.contract.specs import ModelSpec
from rlt_core.plugins.plan import Choice
from rlt_core.testing.example_checkpoint import write_example

MODELS = [model.id for model in registry_of_ours().all(ModelSpec)]
# Thresholds at which a random model leaves early now and then.
THRESHOLDS = {"gate": 0.5, "latent": 0.5, "cosine": 0.2, "entropy": 0.5, "kl": 0.5, "minp_kl": 0.5}
THRESHOLDS |= {"argmax": 2}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPTS = ["Hi", "Over two pages"]  # of 16 positions, with the outputs
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@lru_cache(maxsize=1)
def _registry() -> Any:
    return registry_of_ours()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each model, with a tokenizer of bytes and a chat template."""
    parent = tmp_path_factory.mktemp("examples")
    folders = {model: write_example(model, parent / model) for model in MODELS}
    for folder in folders.values():
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folders


def _llm(folder: Path, **options: Any) -> LLM:
    return LLM(folder, in_process=True, **{"dtype": "float32", "max_model_len": 96, **options})


def _tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_mode_and_strategy(model: str, examples: dict[str, Path]) -> None:
    """Guards the table of layouts: what resolve grants runs, and strategies agree in tokens."""
    choices = [c for c in layout_choices(_registry()) if c.model == model]
    assert len(choices) >= 12
    for (layout, mode), cells in groupby(choices, lambda c: (c.kv_layout, c.exit_mode)):
        granted = [cell for cell in cells if refusal(cell, _registry()) is None]
        options = {"kv_layout": layout, "exit_mode": mode, "max_num_seqs": 2}
        found = [_run(examples[model], cell, strategy=cell.strategy, **options) for cell in granted]
        assert all(tokens == found[0] for tokens in found), (layout, mode)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", MODELS)
def test_every_policy(model: str, examples: dict[str, Path]) -> None:
    """Guards the table of policies: each runs with each layout and leaves within its bounds."""
    for choice in policy_choices(_registry()):
        if choice.model == model and refusal(choice, _registry()) is None:
            options = {"kv_layout": choice.kv_layout, "exit_policy": choice.exit_policy}
            _run(examples[model], choice, **options)


def _run(folder: Path, choice: Choice, **options: Any) -> list[list[int]]:
    """Tokens of two requests; every one has a depth from 1 to the model's loops."""
    policy = options.get("exit_policy")
    extra: dict[str, Any] = {}
    if policy in THRESHOLDS:
        extra["exit_threshold"] = THRESHOLDS[policy]
    if policy == "trace":
        extra["trace"] = [1, 2, 1, 2]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, **extra)
    with _llm(folder, **options) as llm:
        outputs = llm.generate(PROMPTS, params)
    for output in outputs:
        assert output.outputs[0].finish_reason == "length", choice
        depths = output.outputs[0].exit_depths
        assert len(depths) == 4, choice
        assert all(1 <= depth <= 4 for depth in depths), choice
    return _tokens(outputs)


def _decodes(folder: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        with _llm(folder, dtype=dtype) as llm:
            assert _tokens(llm.generate(PROMPTS, GREEDY)) == _tokens(llm.generate(PROMPTS, GREEDY))


def _samples(folder: Path) -> None:
    params = SamplingParams(
        temperature=1.5,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        seed=3,
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={65: 2.0},
        max_tokens=8,
        ignore_eos=True,
    )
    with _llm(folder) as llm:
        assert _tokens(llm.generate(PROMPTS, params)) == _tokens(llm.generate(PROMPTS, params))


def _answers_n(folder: Path) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=6, ignore_eos=True)
    with _llm(folder) as llm:
        (output,) = llm.generate("Hello", params)
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3


def _tells_logprobs(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    with _llm(folder) as llm:
        (output,) = llm.generate("Hello", params)
    assert output.outputs[0].logprobs is not None
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 5


def _scores(folder: Path) -> None:
    with _llm(folder) as llm:
        scored = llm.score("Hello")
    assert scored.total_logprob < 0


def _chunks(folder: Path) -> None:
    with _llm(folder) as whole, _llm(folder, chunk_size=7, max_num_tokens=14) as chunked:
        assert _tokens(whole.generate(PROMPTS, GREEDY)) == _tokens(
            chunked.generate(PROMPTS, GREEDY)
        )


def _together(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    with _llm(folder) as llm:
        together = [o.outputs[0].logprobs for o in llm.generate(PROMPTS, params)]
        alone = [llm.generate(prompt, params)[0].outputs[0].logprobs for prompt in PROMPTS]
    assert together == alone


def _bounds(folder: Path) -> None:
    params = SamplingParams(max_tokens=3, min_loops=2, max_loops=2, ignore_eos=True)
    with _llm(folder) as llm:
        assert set(llm.generate("Hello", params)[0].outputs[0].exit_depths[1:]) == {2}


def _other_loops(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, loops=2, ignore_eos=True)
    with _llm(folder) as llm:
        assert max(llm.generate("Hello", params)[0].outputs[0].exit_depths) <= 2


def _chats(folder: Path) -> None:
    with _llm(folder) as llm:
        (output,) = llm.chat([{"role": "user", "content": "Hello"}], GREEDY)
    assert len(output.outputs[0].token_ids) == 4


def _gates(folder: Path) -> None:
    params = SamplingParams(max_tokens=4, exit_threshold=0.0, ignore_eos=True)
    with _llm(folder, exit_policy="gate") as llm:
        assert llm.generate("Hello", params)[0].outputs[0].exit_depths[1:] == [1, 1, 1]


def _starts_by_seed(folder: Path) -> None:
    def tokens(seed: int) -> list[list[int]]:
        extra = {"state_seed": seed, "state_scale": 4.0}
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, extra=extra)
        return _tokens(llm.generate(PROMPTS, params))

    with _llm(folder) as llm:
        assert tokens(1) == tokens(1) != tokens(2)


def _takes_options(folder: Path) -> None:
    spec = next(m for m in _registry().all(ModelSpec) if m.id == folder.name)
    extra = {o.name: o.default for o in spec.options if o.default is not None}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, extra=extra)
    with _llm(folder) as llm:
        assert _tokens(llm.generate(PROMPTS, params)) == _tokens(llm.generate(PROMPTS, GREEDY))


RUNS: dict[str, Callable[[Path], None]] = {
    "greedy decoding, float32 and bfloat16": _decodes,
    "sampling: temperature, top-k, top-p, min-p, penalties, bias, seeds": _samples,
    "`n` answers to a prompt": _answers_n,
    "log probabilities of answers and prompts": _tells_logprobs,
    "`score`: a text under the exit policy used": _scores,
    "prompts in chunks, mixed with decode rows": _chunks,
    "requests together: the bits of each alone": _together,
    "`min_loops` and `max_loops` of a request": _bounds,
    "`loops`: another depth": _other_loops,
    "chat by the checkpoint's template": _chats,
    "a gate of its own": _gates,
    "a start state by seed": _starts_by_seed,
    "options of its own": _takes_options,
}
CELLS = [(f.name, m.id) for f in FEATURES for m in _registry().all(ModelSpec) if f.holds(m)]


def test_every_feature_has_a_run() -> None:
    """Guards a new row of the table of features: it needs a run here."""
    assert list(RUNS) == [feature.name for feature in FEATURES]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("feature", "model"), CELLS)
def test_every_feature(feature: str, model: str, examples: dict[str, Path]) -> None:
    """Guards the table of features: a "yes" that does not run."""
    RUNS[feature](examples[model])
