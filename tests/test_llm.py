"""LLM: prompts in, outputs out, with scripted tokens and a byte tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlt_core.api.collector import Collector
from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import OptionError, RequestError, StageError
from rlt_core.schedule.request import LENGTH, RUNNING, EngineRequest
from rlt_core.stage.local import LocalClient
from tests.scripted_engine import BROKEN, LOOPS, MAX_LEN, REFUSE, SLOW, VOCAB

CURSED = 299  # the tokenizer fails on it
FACTORY = "tests.scripted_engine:build"


class Bytes:
    """A tokenizer whose ids are bytes, from 1 (0 is the end)."""

    special_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    def piece(self, previous: int | None, token: int) -> bytes:
        if token == CURSED:
            raise KeyError(token)
        return bytes([token - 1]) if 0 < token <= 256 else b""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(engine_factory=FACTORY, in_process=True, tokenizer=Bytes()) as made:
        yield made


@pytest.fixture(scope="module")
def numbers() -> Iterator[LLM]:
    """Without a tokenizer."""
    with LLM(engine_factory=FACTORY, in_process=True) as made:
        yield made


def ids(*tokens: int) -> dict[str, object]:
    return {"prompt_token_ids": list(tokens)}


def test_text_in_text_out(llm: LLM) -> None:
    """Text, ids, depths and usage of one output disagreed with each other."""
    (output,) = llm.generate("abc", SamplingParams(max_tokens=5))
    (answer,) = output.outputs
    assert (output.prompt, output.prompt_token_ids) == ("abc", Bytes().encode("abc"))
    assert (answer.text, answer.token_ids) == ("abcab", Bytes().encode("abcab"))
    assert answer.exit_depths == output.exit_depths == [1, 2, 3, 4, 1]
    assert (answer.finish_reason, answer.stop_reason) == ("length", None)
    usage = output.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 5, 8)
    assert (usage.num_loops, usage.mean_depth) == (11, 2.2)
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None
    assert output.error is None


def test_results_keep_the_order_of_prompts(llm: LLM) -> None:
    """Short answers came back before long ones that were asked first."""
    params = [SamplingParams(max_tokens=count) for count in (9, 1, 4)]
    outputs = llm.generate(["aa", ids(99, 99), {"prompt_token_ids": (100,)}], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 4]
    assert [output.prompt for output in outputs] == ["aa", None, None]
    assert llm.generate([]) == []


def test_without_a_tokenizer_text_is_none(numbers: LLM) -> None:
    """A checkpoint without a tokenizer could not be used at all."""
    (output,) = numbers.generate(ids(5, 6), SamplingParams(max_tokens=2, logprobs=1))
    assert (output.prompt, output.outputs[0].text) == (None, None)
    assert output.outputs[0].logprobs is not None
    assert output.outputs[0].logprobs[0][5].decoded_token is None
    for bad, field in (("text", "prompt"), (ids(5), "stop")):
        params = SamplingParams(stop="x") if field == "stop" else None
        with pytest.raises(RequestError) as caught:
            numbers.generate(bad, params)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ("", "prompt"),
        (ids(), "prompt_token_ids"),
        (ids(-1), "prompt_token_ids"),
        (ids(VOCAB), "prompt_token_ids"),
        ({"prompt_token_ids": [[1]]}, "prompt_token_ids"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"token_ids": [1]}, "prompt"),
        ([1, 2], "prompt"),
        (7, "prompt"),
        (None, "prompt"),
        (ids(*[1] * MAX_LEN), "prompt"),
        (ids(REFUSE), "prompt"),
        (ids(BROKEN), "request"),
        ("\ud800", "prompt"),
        (ids(5, CURSED), "text"),
    ],
)
def test_one_bad_request_fails_alone(llm: LLM, bad: Any, field: str) -> None:
    """CASES A87: one bad prompt in a batch cost the good ones their answers."""
    good = "ok"
    outputs = llm.generate([good, bad, good], SamplingParams(max_tokens=2))
    assert [output.outputs[0].text for output in (outputs[0], outputs[2])] == ["ok", "ok"]
    assert outputs[1].outputs == []
    error = outputs[1].error
    assert isinstance(error, RequestError)
    assert error.field == field
    assert 1 <= len(str(error).splitlines()) <= 4
    with pytest.raises(RequestError):
        llm.generate([good, bad], on_error="raise")
    assert llm.generate(good)[0].outputs[0].text


def test_a_wrong_on_error_is_refused(llm: LLM) -> None:
    """A misspelt on_error let every error through in silence."""
    with pytest.raises(OptionError, match="on_error 'foo': it is raise or return"):
        llm.generate(["a"], on_error="foo")  # type: ignore[arg-type]  # wrong on purpose


def test_single_prompt_raises_unless_told_otherwise(llm: LLM) -> None:
    """A script that asked one wrong thing went on with an empty answer."""
    with pytest.raises(RequestError):
        llm.generate(ids(REFUSE))
    assert llm.generate(ids(REFUSE), on_error="return")[0].error is not None


def test_wrong_calls_are_type_errors(llm: LLM) -> None:
    """Unknown options were dropped in silence (a misspelt one is ignored)."""
    with pytest.raises(TypeError):
        llm.generate("a", {"max_tokens": 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        llm.generate(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 sampling_params for 1"):
        llm.generate(["a"], [SamplingParams()] * 2)


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_cuts_every_record(llm: LLM, include: bool) -> None:
    """CASES A75: tokens after the one that completes a stop string stayed in ids, depths, usage."""
    params = SamplingParams(
        stop=["END"], max_tokens=50, include_stop_str_in_output=include, logprobs=0
    )
    (output,) = llm.generate("abc ENDING", params)
    (answer,) = output.outputs
    assert answer.text == ("abc END" if include else "abc ")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "END")
    assert len(answer.token_ids) == len("abc END") == output.usage.completion_tokens
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.exit_depths) == len(answer.token_ids)


def test_stopped_request_is_aborted_in_the_engine(llm: LLM) -> None:
    """CASES A75, A77: a request that its stop string ended ran on to max_tokens."""
    llm.generate("abc ENDING", SamplingParams(stop="END", max_tokens=None))
    assert not has_work(llm)
    assert not llm._dispatcher._router._open


def has_work(llm: LLM) -> bool:
    """Whether the engine still works after it has heard of aborts."""
    client = llm._client
    assert isinstance(client, LocalClient)
    client.receive(0.0)
    client.receive(0.0)
    return client._stage.has_work


def test_nothing_follows_the_end() -> None:
    """CASES A65: the tokens of ticks in flight were added to an answer that had ended."""
    request = EngineRequest(request_id=0, prompt=np.asarray([98], np.int64))
    answer = Collector(request, SamplingParams(stop="b"), Bytes())
    assert not answer.take(98, 1, 0.0, 1, RUNNING, ())
    assert answer.take(99, 2, 0.0, 1, RUNNING, ())
    assert not answer.take(100, 3, 0.0, 1, LENGTH, ())
    output = answer.output()
    assert (output.text, output.token_ids, output.exit_depths) == ("a", [98, 99], [1, 2])
    assert (output.finish_reason, answer.news().token_ids) == ("stop", (98, 99))
    assert not answer.has_news


def test_half_a_stop_string_is_released_at_the_end(llm: LLM) -> None:
    """CASES A75: text held back as a possible stop string was lost when the answer ended."""
    (output,) = llm.generate("abEN", SamplingParams(stop="END", max_tokens=4))
    assert output.outputs[0].text == "abEN"
    assert output.outputs[0].finish_reason == "length"


def test_stop_ids(llm: LLM) -> None:
    """The end-of-text token was printed, or an asked-for stop id reported as the model's own."""
    (output,) = llm.generate(ids(98, 99, 0))
    (answer,) = output.outputs
    assert (answer.text, answer.token_ids) == ("ab", [98, 99, 0])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    (output,) = llm.generate("abc", SamplingParams(stop_token_ids=[99]))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("a", 99)
    params = SamplingParams(stop_token_ids=[99], include_stop_str_in_output=True)
    assert llm.generate("abc", params)[0].outputs[0].text == "ab"
    params = SamplingParams(ignore_eos=True, max_tokens=4)
    assert llm.generate(ids(98, 0), params)[0].outputs[0].token_ids == [98, 0, 98, 0]


@pytest.mark.parametrize("count", range(1, 8))
def test_stream_is_the_same_text(llm: LLM, count: int) -> None:
    """CASES A75, A76: streamed and whole text differed when max_tokens cut a character."""
    params = SamplingParams(max_tokens=count, stop="!x")
    text = "\N{GRINNING FACE}!é"
    (whole,) = llm.generate(text, params)
    stream = llm.stream(text, params)
    parts = list(stream)
    assert (
        "".join(part.text for part in parts)
        == whole.outputs[0].text
        == stream.output.outputs[0].text
    )
    assert [t for part in parts for t in part.token_ids] == whole.outputs[0].token_ids
    assert [d for part in parts for d in part.exit_depths] == whole.outputs[0].exit_depths
    assert [part.finish_reason for part in parts][-1] == "length"
    assert stream.output.finished
    assert all(not part.text.endswith("\N{REPLACEMENT CHARACTER}") for part in parts[:-1])


def test_stream_that_is_left_is_aborted(llm: LLM) -> None:
    """CASES A77: a client that went away left its request running."""
    stream = llm.stream("ab", SamplingParams(max_tokens=None))
    for part in stream:
        assert part.finish_reason is None
        break
    assert not stream.output.finished
    stream.close()
    assert not llm._dispatcher._router._open
    with pytest.raises(RequestError):
        llm.stream(ids(REFUSE + 1000))
    with pytest.raises(RequestError):
        list(llm.stream(ids(REFUSE)))


def test_siblings_have_their_own_seeds(llm: LLM) -> None:
    """n answers to one prompt shared one seed, or were counted as one in the usage."""
    (output,) = llm.generate("ab", SamplingParams(n=3, seed=11, max_tokens=2))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert output.outputs[0].seed == 11
    assert len({answer.seed for answer in output.outputs}) == 3
    assert (output.usage.completion_tokens, output.sampling["seed"]) == (6, 11)
    (drawn,) = llm.generate("ab", SamplingParams(max_tokens=1))
    assert drawn.sampling["seed"] == drawn.outputs[0].seed


def test_logprobs_hold_the_chosen_token_and_alternatives(llm: LLM) -> None:
    """logprobs=0 gave nothing, or the chosen token was missing when it was not among the top."""
    (output,) = llm.generate("ab", SamplingParams(max_tokens=2, logprobs=2))
    (answer,) = output.outputs
    assert answer.logprobs is not None
    first = answer.logprobs[0]
    assert [(t, p.logprob, p.rank, p.decoded_token) for t, p in first.items()] == [
        (98, -0.5, 1, "a"),
        (99, -1.5, 2, "b"),
    ]
    assert answer.cumulative_logprob == -1.0
    assert [p.token_bytes for p in first.values()] == [b"a", b"b"]
    streamed = list(llm.stream("ab", SamplingParams(max_tokens=2, logprobs=2)))
    assert [table for part in streamed for table in part.logprobs or ()] == answer.logprobs
    (output,) = llm.generate("ab", SamplingParams(max_tokens=2, logprobs=0))
    assert output.outputs[0].logprobs is not None
    assert list(output.outputs[0].logprobs[1]) == [99]


def test_an_increment_has_the_logprobs_of_all_its_tokens() -> None:
    """A reader that was slow got the logprobs of the last token alone."""
    request = EngineRequest(request_id=0, prompt=np.asarray([97]), prompt_len=1)
    collector = Collector(request, SamplingParams(logprobs=0), None)
    for token in (5, 6, 7):
        collector.take(token, 1, -0.5 * token, 1, RUNNING, ())
        if token == 5:
            assert [list(table) for table in collector.news().logprobs or ()] == [[5]]
    assert [list(table) for table in collector.news().logprobs or ()] == [[6], [7]]


def test_prompt_logprobs(llm: LLM) -> None:
    """The logprob of a prompt token stood one place off."""
    (output,) = llm.generate("abc", SamplingParams(max_tokens=1, prompt_logprobs=0, n=2))
    tables = output.prompt_logprobs
    assert tables is not None
    assert tables[0] is None
    assert [list(table) for table in tables[1:] if table] == [[99], [100]]
    assert [next(iter(t.values())).logprob for t in tables[1:] if t] == [-0.25, -0.5]


def test_score(llm: LLM) -> None:
    """Scores stood one place off, or a text of one token waited for ever."""
    scored = llm.score("abcd", prompt_len=1)
    assert scored.token_ids == Bytes().encode("abcd")
    assert scored.logprobs == [None, -0.25, -0.5, -0.75]
    assert scored.ranks == [None, 1, 2, 3]
    assert scored.exit_depths == [None, 1, 2, 3]
    assert scored.total_logprob == -1.5
    assert llm.score([98, 99]).token_ids == llm.score(ids(98, 99)).token_ids == [98, 99]
    assert llm.score([98, 99], sampling_params=SamplingParams(logprobs=1)).alternatives
    for bad in ("a", "", [VOCAB, 1], [], [REFUSE, 1]):
        with pytest.raises(RequestError):
            llm.score(bad)
    with pytest.raises(RequestError):
        llm.score("ab", prompt_len=3)
    with pytest.raises(RequestError):
        llm.score("ab", sampling_params=SamplingParams(loops=LOOPS + 1))


def test_trace_policy() -> None:
    """Recorded depths could not be asked for by a request."""
    with LLM(engine_factory="tests.scripted_engine:build_trace", in_process=True) as llm:
        params = SamplingParams(trace=[4, 1], max_tokens=3)
        assert llm.generate(ids(5), params)[0].error is None
        with pytest.raises(RequestError) as caught:
            llm.generate(ids(5))
        assert caught.value.field == "trace"


def test_threads_are_served_together(llm: LLM) -> None:
    """Two threads that called generate took each other's answers, or one waited for the other."""
    results: dict[int, list[int]] = {}

    def work(token: int) -> None:
        outputs = llm.generate([ids(token), ids(token, token)], SamplingParams(max_tokens=30))
        results[token] = [t for output in outputs for t in output.outputs[0].token_ids]

    threads = [threading.Thread(target=work, args=(token,)) for token in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {token: [token] * 60 for token in range(10, 18)}


def test_interrupted_call_aborts_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C left the requests of the call running in the stage."""
    with LLM(engine_factory=FACTORY, in_process=True) as llm:
        calls = 0

        def update(self: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("rlt_core.api.progress.Progress.update", update)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(ids(SLOW), SamplingParams(max_tokens=None))
        monkeypatch.undo()
        assert not llm._dispatcher._router._open
        assert not has_work(llm)


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """A progress bar was written into a log file, or cost a terminal's user an exception."""
    slow = [ids(SLOW, 5)] * 2
    llm.generate(slow, SamplingParams(max_tokens=2))
    assert capsys.readouterr().err == ""
    llm.generate(slow, SamplingParams(max_tokens=25), progress=True)
    assert "prompts" in capsys.readouterr().err


def test_closed_llm_says_so() -> None:
    """A call after close hung."""
    llm = LLM(engine_factory=FACTORY, in_process=True)
    llm.close()
    llm.close()
    with pytest.raises(StageError, match="closed"):
        llm.generate(ids(5))
