"""LLM with a real engine behind it, in a process and without one."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import CapacityError, OptionError, RequestError, StageError
from rlt_core.runtime import emit, logit_parts
from rlt_core.runtime.sampling import Sampled, score_tokens
from rlt_core.stage.build import build_engine
from rlt_core.stage.client import StageClient
from rlt_core.stage.config import StageConfig
from rlt_core.stage.stage import BuiltEngine
from rlt_core.testing.byte_tokenizer import write_byte_tokenizer
from rlt_core.testing.tiny_model import write_checkpoint
from rlt_core.testing.tiny_plugin import registry_with_tiny
from tests.selection import mostly_slow

SIZES: dict[str, Any] = {"kv_pages": 400, "max_num_seqs": 4, "max_num_tokens": 32, "debug": True}
PROMPTS = ["a short one", "another prompt, somewhat longer than the first", "x"]


def build(config: StageConfig) -> BuiltEngine:
    """The engine factory: the real one, with the tiny model among the installed."""
    return build_engine(config, registry_with_tiny())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("tiny") / "b", "b")
    return write_byte_tokenizer(made)


def start(folder: Path, **options: Any) -> LLM:
    values = {**SIZES, **options}
    return LLM(folder, engine_factory=f"{__name__}:build", **values)


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[LLM]:
    with start(folder, in_process=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def remote(folder: Path) -> Iterator[LLM]:
    with start(folder) as llm:
        yield llm


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "temperature": 0, "ignore_eos": True, **changes})


def records(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (answer.text, answer.token_ids, answer.exit_depths, answer.logprobs)
        for output in outputs
        for answer in output.outputs
    ]


CHANGES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3, "n": 2, "top_k": 40, "repetition_penalty": 1.2},
    {"exit_policy": "fixed", "loops": 2, "logprobs": 3},
    {"exit_threshold": 0.2, "min_loops": 2, "logit_bias": {65: 2.0}},
]


@pytest.mark.parametrize("changes", mostly_slow(CHANGES, CHANGES[2]))
def test_process_and_batch_change_nothing(local: LLM, remote: LLM, changes: Any) -> None:
    """A request's tokens, depths or logprobs depended on its neighbours, or on being sent."""
    together = remote.generate(PROMPTS, params(**changes))
    alone = [local.generate(prompt, params(**changes))[0] for prompt in PROMPTS]
    assert records(together) == records(alone)
    assert all(1 <= d <= 3 for output in together for d in output.exit_depths)
    assert together[0].exit_depths[0] == (2 if "loops" in changes else 3)


@pytest.mark.slow
def test_exits_happen(local: LLM) -> None:
    """CASES A9: the threshold of a request was taken and changed nothing."""
    early, late = (local.generate(PROMPTS, params(exit_threshold=t)) for t in (0.1, 1.0))
    assert {d for output in late for d in output.exit_depths} == {3}
    assert min(d for output in early for d in output.exit_depths[1:]) == 1


def test_score_agrees_with_generation(local: LLM) -> None:
    """A scored text's logprobs and depths differed from those of generating it."""
    (output,) = local.generate(PROMPTS[1], params(logprobs=0, exit_threshold=0.3))
    answer, length = output.outputs[0], len(output.prompt_token_ids)
    options = params(exit_threshold=0.3)
    text = output.prompt_token_ids + answer.token_ids
    scored = local.score(text, prompt_len=length, sampling_params=options)
    assert answer.logprobs is not None
    drawn = [table[t].logprob for t, table in zip(answer.token_ids, answer.logprobs, strict=True)]
    assert scored.logprobs[length:] == drawn
    assert scored.exit_depths[length:] == answer.exit_depths
    assert all(value is None or math.isfinite(value) for value in scored.logprobs)


def test_an_engine_of_fewer_loops_serves_at_its_depth(folder: Path) -> None:
    """It started, and refused every request that named no loops of its own."""
    with start(folder, in_process=True, max_depth=2) as llm:
        (output,) = llm.generate(PROMPTS[0], params(exit_policy="fixed"))
        assert set(output.exit_depths) == {2}
        with pytest.raises(RequestError, match="loops: 3 is out of range: it must be 1 to 2"):
            llm.generate(PROMPTS[0], params(loops=3))
        with pytest.raises(RequestError, match="has exit_threshold.\nFix: --exit-policy trace"):
            llm.generate(PROMPTS[0], params(trace=[1, 2]))


def test_prompt_logprobs_are_those_of_a_score(local: LLM) -> None:
    """Prompt logprobs stood a place off, or disagreed with score."""
    (output,) = local.generate(PROMPTS[0], params(prompt_logprobs=2))
    ids = output.prompt_token_ids
    scored = local.score(ids, prompt_len=len(ids), sampling_params=params())
    assert output.prompt_logprobs is not None
    tables = output.prompt_logprobs[1:]
    found = [table[t].logprob for t, table in zip(ids[1:], tables, strict=True) if table]
    assert found == scored.logprobs[1:]


def test_scores_come_in_parts_that_fit(local: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompt rows of a tick were scored at once: a long prompt with logprobs took more memory
    than a GPU's pool leaves free, and ended the stage."""
    sizes: list[int] = []

    def noted(logits: Tensor, token: Tensor, num_top: int) -> Sampled:
        sizes.append(len(token))
        return score_tokens(logits, token, num_top)

    monkeypatch.setattr(emit, "score_tokens", noted)
    options = params(prompt_logprobs=2)
    (whole,) = local.generate("twenty-four letters, or so", options)
    assert max(sizes) > 7
    sizes.clear()
    size = logit_parts.PART_PEAK * 4 * local.report.vocab_size
    monkeypatch.setattr(logit_parts, "PART_BYTES", 7 * size)
    (parts,) = local.generate("twenty-four letters, or so", options)
    assert max(sizes) == 7
    assert parts.prompt_logprobs == whole.prompt_logprobs


@pytest.mark.slow
def test_cached_tokens_are_reported(local: LLM) -> None:
    """A prompt that begins as an earlier one did reuses its pages, says so in its usage, and is
    answered alike; siblings share one prompt."""
    params = SamplingParams(temperature=0, max_tokens=4)
    text = "a prompt that nobody else asks, longer than two pages"
    first, again = (local.generate([text], params)[0] for _ in range(2))
    assert first.usage.cached_tokens == 0
    whole = (len(first.prompt_token_ids) - 1) // 16 * 16
    assert again.usage.cached_tokens == whole > 16
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.outputs[0].exit_depths == first.outputs[0].exit_depths


def test_more_requests_than_slots(local: LLM) -> None:
    """Requests beyond the slots were refused, or took a neighbour's depths."""
    outputs = local.generate([PROMPTS[i % 3] for i in range(12)], params())
    assert records(outputs[:3]) * 4 == records(outputs)


@pytest.mark.slow
def test_pool_is_the_limit(folder: Path) -> None:
    """CASES A74: a prompt that the pool can never hold was taken; one that fits later refused."""
    with start(folder, in_process=True, kv_pages=41, page_size=8) as llm:
        report = llm.report
        assert any("KV pool: 41 pages" in note for note in report.notes)
        room = report.token_capacity
        assert room + 1 == report.max_len < 512
        long = {"prompt_token_ids": [1] * (room * 2 // 3)}
        assert all(o.error is None for o in llm.generate([long] * 2, params(max_tokens=2)))
        (output,) = llm.generate(long, params(max_tokens=None))
        assert output.outputs[0].finish_reason == "length"
        assert output.usage.total_tokens == report.max_len
        over = {"prompt_token_ids": [1] * (room + 1)}
        (output,) = llm.generate(over, on_error="return")
        assert str(room + 1) in str(output.error)
        assert str(report.max_len) in str(output.error)


@pytest.mark.slow
def test_impossible_sizes_are_refused(folder: Path) -> None:
    """CASES A74, A100: sizes that cannot work failed at the first request, or long after."""
    for options, kind in (
        ({"kv_pages": 2}, CapacityError),
        ({"kv_pages": None, "kv_memory": 1000}, CapacityError),
        ({"kv_pages": None, "kv_memory": 1 << 50}, CapacityError),
        ({"kv_pages": 1 << 40}, CapacityError),
        ({"max_num_tokens": 1 << 40}, CapacityError),
        ({"max_model_len": 513}, OptionError),
        ({"max_model_len": 500, "kv_pages": 60}, CapacityError),
        ({"chunk_size": 64}, OptionError),
        ({"page_size": 7}, Exception),
    ):
        with pytest.raises(kind) as caught:
            start(folder, in_process=True, **options)
        assert 1 <= len(str(caught.value).splitlines()) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prompt", "decode", "idle"])
def test_stage_killed(folder: Path, phase: str) -> None:
    """CASES A99: a stage killed in its prompt, in decode or idle left a call waiting."""
    with start(folder, max_num_tokens=2) as llm:
        client = llm._client
        assert isinstance(client, StageClient)
        failures: list[BaseException] = []
        stream = None
        if phase == "decode":
            stream = iter(llm.stream("ab", params(max_tokens=400)))
            next(stream)
        call = threading.Thread(target=_ask, args=(llm, failures))
        if phase != "idle":
            call.start()
            time.sleep(0.05)
        os.kill(client.pid, signal.SIGKILL)
        begin = time.monotonic()
        if phase == "idle":
            call.start()
        call.join(5)
        assert [type(error) for error in failures] == [StageError]
        if stream is not None:
            with pytest.raises(StageError):
                list(stream)
        assert time.monotonic() - begin < 5
    assert client._process.end_reason() is not None


def _ask(llm: LLM, failures: list[BaseException]) -> None:
    try:
        llm.generate(["p" * 90] * 8, params(max_tokens=300))
    except BaseException as error:
        failures.append(error)
