"""The openai client against a server of the demo model: its answers are those of LLM."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.llm import LLM
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from tests.selection import mostly_slow
from tests.server_kit import RunningServer, running

SIZES: dict[str, Any] = {"in_process": True, "max_num_seqs": 8, "max_num_tokens": 32}
PROMPT = "Ann has 8. Oli has 7. Gus has Oli + 5. Gus?"
PROMPTS = [PROMPT, "Eve has 2. Ned has Eve + 9. Ned?"]
MORE = {"return_token_ids": True, "return_exit_depths": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(None, **SIZES) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(AsyncLLM(None, **SIZES), max_prompts=8) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def create(client: OpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    extra = {**MORE, **fields.pop("extra_body", {})}
    return client.completions.create(model="demo", prompt=prompt, extra_body=extra, **fields)


def expected(llm: LLM, prompts: Any, **params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, SamplingParams(**{"max_tokens": 16, **params}), progress=False)


def answers(
    outputs: list[RequestOutput],
) -> list[tuple[int, str | None, list[int], list[int], Any]]:
    found = [answer for output in outputs for answer in output.outputs]
    return [(i, a.text, a.token_ids, a.exit_depths, a.finish_reason) for i, a in enumerate(found)]


def choices(completion: Any) -> list[tuple[int, str, list[int], list[int], str]]:
    return [
        (c.index, c.text, c.token_ids, c.exit_depths, c.finish_reason) for c in completion.choices
    ]


def joined(chunks: list[Any]) -> list[tuple[int, str, list[int], list[int], str]]:
    """The chunks of a stream as choices."""
    found: dict[int, tuple[int, str, list[int], list[int], str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        _, text, ids, depths, end = found.get(choice.index, (0, "", [], [], None))
        assert end is None, "something came behind the end"
        found[choice.index] = (
            choice.index,
            text + choice.text,
            ids + choice.token_ids,
            depths + choice.exit_depths,
            choice.finish_reason,
        )
    return [found[index] for index in sorted(found)]


# What the route is asked, and the same as SamplingParams.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0}, {"temperature": 0}),
    "short": ({"temperature": 0, "max_tokens": 2}, {"temperature": 0, "max_tokens": 2}),
    "n": ({"n": 3, "seed": 5, "temperature": 2}, {"n": 3, "seed": 5, "temperature": 2.0}),
    "sampled": (
        {
            "seed": 3,
            "temperature": 1.5,
            "top_p": 0.9,
            "presence_penalty": 1,
            "frequency_penalty": 0.5,
            "logit_bias": {"5": 2},
            "extra_body": {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1},
        },
        {
            "seed": 3,
            "temperature": 1.5,
            "top_p": 0.9,
            "presence_penalty": 1.0,
            "frequency_penalty": 0.5,
            "logit_bias": {5: 2.0},
            "top_k": 20,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
        },
    ),
    "stop": ({"temperature": 0, "stop": ["as 1"]}, {"temperature": 0, "stop": ["as 1"]}),
    "stop kept": (
        {"temperature": 0, "stop": "has", "extra_body": {"include_stop_str_in_output": True}},
        {"temperature": 0, "stop": "has", "include_stop_str_in_output": True},
    ),
    "past the end": (
        {
            "temperature": 0,
            "max_tokens": 7,
            "extra_body": {"ignore_eos": True, "skip_special_tokens": False},
        },
        {"temperature": 0, "max_tokens": 7, "ignore_eos": True, "skip_special_tokens": False},
    ),
    "stop id": (
        {"temperature": 0, "extra_body": {"stop_token_ids": [44]}},
        {"temperature": 0, "stop_token_ids": [44]},
    ),
    "depths": (
        {"temperature": 0, "extra_body": {"exit_threshold": 0.9, "min_loops": 2, "max_loops": 3}},
        {"temperature": 0, "exit_threshold": 0.9, "min_loops": 2, "max_loops": 3},
    ),
    "fixed": (
        {"temperature": 0, "extra_body": {"exit_policy": "fixed", "loops": 2}},
        {"temperature": 0, "exit_policy": "fixed", "loops": 2},
    ),
}


@pytest.mark.parametrize("name", mostly_slow(ASKED, "sampled", "stop"))
def test_answers_are_those_of_the_library(client: OpenAI, llm: LLM, name: str) -> None:
    """A field changed its meaning on the way through HTTP; a stream differed from the whole."""
    fields, params = ASKED[name]
    wanted = expected(llm, PROMPTS, **params)
    whole = create(client, PROMPTS, **fields)
    assert choices(whole) == answers(wanted)
    assert joined(list(create(client, PROMPTS, stream=True, **fields))) == answers(wanted)
    usage = whole.usage
    assert usage.prompt_tokens == sum(o.usage.prompt_tokens for o in wanted)
    assert usage.completion_tokens == sum(o.usage.completion_tokens for o in wanted)
    loops = sum(o.usage.num_loops for o in wanted)
    assert usage.mean_depth == pytest.approx(loops / usage.completion_tokens)


def test_prompts_as_token_ids(client: OpenAI, llm: LLM) -> None:
    """A list of ids was read as text, or as many prompts."""
    ids = [llm.encode(prompt) for prompt in PROMPTS]
    wanted = answers(expected(llm, PROMPTS, temperature=0))
    assert choices(create(client, ids, temperature=0)) == wanted
    assert choices(create(client, ids[0], temperature=0)) == wanted[:1]


def test_a_stream_tells_its_usage_last(client: OpenAI) -> None:
    """Usage came in a chunk with choices, or not at all, and the client crashed."""
    options = {"include_usage": True}
    *chunks, last = create(client, stream=True, temperature=0, stream_options=options)
    whole = create(client, temperature=0)
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in chunks)
    assert {chunk.id for chunk in (*chunks, last)} == {last.id}
    every = {"continuous_usage_stats": True}
    counts = [
        c.usage.completion_tokens
        for c in create(client, stream=True, stream_options=every, temperature=0)
    ]
    assert counts == sorted(counts)
    assert counts[-1] == whole.usage.completion_tokens


def test_siblings_take_turns(client: OpenAI) -> None:
    """The second answer of a stream began once the first had ended."""
    chunks = list(create(client, stream=True, n=2, temperature=0, max_tokens=4))
    order = [choice.index for chunk in chunks for choice in chunk.choices]
    assert order.index(1) < len(order) - 1 - order[::-1].index(0)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: OpenAI, llm: LLM, stream: bool) -> None:
    """Offsets counted bytes or tokens; an echo had no logprobs of the prompt, or they stood one
    place off."""
    (wanted,) = expected(llm, PROMPT, temperature=0, logprobs=2, prompt_logprobs=2, n=2)
    found = create(client, temperature=0, logprobs=2, echo=True, n=2, stream=stream)
    whole = joined(list(found) if stream else [found])
    given = found.choices if not stream else None
    assert [choice[1] for choice in whole] == [f"{PROMPT}{a.text}" for a in wanted.outputs]
    if given is None:
        return
    for choice, answer in zip(given, wanted.outputs, strict=True):
        tables = [*(wanted.prompt_logprobs or ()), *(answer.logprobs or ())]
        tokens = [*wanted.prompt_token_ids, *answer.token_ids]
        logprobs = choice.logprobs
        pairs = list(zip(tokens, tables, strict=True))
        assert logprobs.token_logprobs[0] is None
        assert logprobs.token_logprobs[1:] == [t[token].logprob for token, t in pairs[1:] if t]
        assert [len(t) for t in logprobs.top_logprobs[1:]] == [len(t) for _, t in pairs[1:] if t]
        visible = logprobs.tokens[:-1] if logprobs.tokens[-1] == "<eos>" else logprobs.tokens
        assert "".join(visible) == choice.text
        for text, offset in zip(visible, logprobs.text_offset, strict=False):
            assert choice.text[offset : offset + len(text)] == text


def test_a_stream_has_the_same_logprobs(client: OpenAI) -> None:
    """The logprobs of a stream were those of the last token alone."""
    asked: dict[str, Any] = {"temperature": 0, "logprobs": 1, "echo": True}
    whole = create(client, **asked).choices[0].logprobs.model_dump()
    parts = [c.logprobs for chunk in create(client, stream=True, **asked) for c in chunk.choices]
    for name, values in whole.items():
        assert [item for part in parts if part for item in getattr(part, name)] == values, name


def test_an_echo_without_an_answer(client: OpenAI, llm: LLM) -> None:
    """CASES A87: max_tokens 0 with echo and logprobs, as evaluation harnesses ask, was refused."""
    found = create(client, PROMPTS, max_tokens=0, echo=True, logprobs=0)
    for choice, prompt in zip(found.choices, PROMPTS, strict=True):
        score = llm.score(prompt, prompt_len=len(llm.encode(prompt)))
        assert (choice.text, choice.finish_reason) == (prompt, "length")
        assert choice.logprobs.token_logprobs == score.logprobs
    assert found.usage.completion_tokens == 0
    longer = create(client, PROMPT, max_tokens=1, echo=True, logprobs=0, temperature=0)
    assert (
        longer.choices[0].logprobs.token_logprobs[:-1] == found.choices[0].logprobs.token_logprobs
    )
    (plain,) = create(client, "Ann", max_tokens=0, echo=True).choices
    assert (plain.text, plain.logprobs) == ("Ann", None)


def refused(client: OpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    with pytest.raises(openai.APIStatusError) as caught:
        create(client, prompt, **fields)
    return caught.value


def test_errors(client: OpenAI, server: RunningServer) -> None:
    """CASES A72, A87: a wrong request was a 500, or its error did not say which field."""
    for fields, param in (
        ({"suffix": "x"}, "suffix"),
        ({"extra_body": {"best_of": 4}}, "best_of"),
        ({"extra_body": {"temprature": 4}}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"loops": 5}}, "loops"),
        ({"extra_body": {"stop_token_ids": [49]}}, "stop_token_ids"),
        ({"logit_bias": {"49": 1}}, "logit_bias"),
        ({"extra_body": {"exit_policy": "entropy"}}, "exit_policy"),
        ({"extra_body": {"extra": {"state_scale": 1}}}, "extra.state_scale"),
    ):
        error = refused(client, **fields)
        assert (error.status_code, error.param) == (400, param), error
        assert error.type == "invalid_request_error"
    assert refused(client, [49]).param == "prompt"
    assert refused(client, [PROMPT] * 9).param == "prompt"
    long = refused(client, [5] * 600)
    assert (long.status_code, long.code, long.param) == (400, "context_length_exceeded", "prompt")
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="a")
    assert caught.value.code == "model_not_found"
    assert create(client, temperature=0).choices
    assert server.llm.num_open == 0


def test_bodies_that_are_no_json(server: RunningServer) -> None:
    """CASES A72: half a surrogate pair, or no JSON at all, was a 500."""
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "user": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b"[" * 100_000,
        b'{"prompt": "\xff"}',
    ):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400, body[:40]
        assert answer.json()["error"]["message"]


def idle(server: RunningServer, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while server.llm.num_open and time.monotonic() < end:
        time.sleep(0.01)
    return server.llm.num_open == 0


LONG = {"ignore_eos": True, "max_tokens": 480, "exit_policy": "fixed", "prompt": "Ann"}


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_that_is_left_is_cancelled(client: OpenAI, server: RunningServer, n: int) -> None:
    """CASES A77: the client was gone, and the work went on to max_tokens."""
    chunks = client.completions.create(
        model="demo",
        prompt="Ann",
        stream=True,
        max_tokens=480,
        n=n,
        extra_body={"ignore_eos": True, "exit_policy": "fixed"},
    )
    next(iter(chunks))
    assert server.llm.num_open == n
    chunks.close()
    assert idle(server)


def test_a_client_that_waits_no_longer(server: RunningServer) -> None:
    """CASES A77: only streams noticed that the client was gone."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={**LONG, "n": 8}, timeout=0.3)
    assert idle(server)


def test_many_clients_at_once(client: OpenAI, llm: LLM) -> None:
    """Answers of requests that run together were swapped or mixed."""
    wanted = answers(expected(llm, PROMPTS, temperature=0))
    found: list[Any] = [None] * 12

    def ask(i: int) -> None:
        fields: dict[str, Any] = {"temperature": 0, "stream": i % 2 == 1}
        answer = create(client, PROMPTS[i % 2], **fields)
        found[i] = joined(list(answer) if i % 2 else [answer])[0][1:]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [wanted[i % 2][1:] for i in range(len(found))]


def test_a_request_that_never_fits_is_not_told_to_come_again(client: OpenAI) -> None:
    """Each prompt alone fitted the queue, all together never: 429 with Retry-After, for ever."""
    with pytest.raises(openai.BadRequestError, match="48 answers .* at most 40 fit") as found:
        create(client, [PROMPT] * 8, n=6, max_tokens=1)
    assert found.value.param == "prompt"
