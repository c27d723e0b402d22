"""Answers of a given form out of a real engine: masks travel, rows park, nobody else notices."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.constraint import Constraint
from rlt_core.api.llm import LLM
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.structured import Structured
from rlt_core.contract.errors import RequestError
from rlt_core.testing.byte_tokenizer import write_byte_tokenizer
from rlt_core.testing.tiny_model import write_checkpoint
from tests.chat_kit import user
from tests.selection import mostly_slow
from tests.test_constraints import PERSON

FACTORY = "tests.test_llm_engine:build"
SIZES: dict[str, Any] = {"kv_pages": 400, "max_num_seqs": 4, "max_num_tokens": 32}
SMALL = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("tiny") / "b", "b")
    return write_byte_tokenizer(made)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, engine_factory=FACTORY, in_process=True, **SIZES) as made:
        yield made


def params(structured: Structured | None, **fields: Any) -> SamplingParams:
    values = {"max_tokens": 40, "temperature": 1.0, "seed": 5, "structured": structured, **fields}
    return SamplingParams(**values)


def told(outputs: list[RequestOutput]) -> list[Any]:
    """All that an answer says, for comparisons."""
    return [
        (c.token_ids, c.exit_depths, c.text, c.finish_reason, c.logprobs)
        for output in outputs
        for c in output.outputs
    ]


def check(text: str | None, schema: Any) -> None:
    assert text is not None
    jsonschema.validate(json.loads(text), schema)


def test_a_random_model_gives_valid_json_alone_and_in_a_crowd(llm: LLM) -> None:
    """Weights that know nothing of JSON write it, greedy and drawn, with siblings; and every
    answer, logprobs too, is the one it is alone. Unmasked neighbours are untouched."""
    asked = [
        params(Structured(json_schema=SMALL), n=2, logprobs=1),
        params(None, max_tokens=12, logprobs=1),
        params(Structured(regex="[ab]{4}"), temperature=0),
        params(Structured(json_schema=SMALL), temperature=0, exit_threshold=0.4),
        params(Structured(choice=["yes", "no"]), ignore_eos=True),
    ]
    prompts = ["one", "two", "three", "four", "five"]
    together = llm.generate(prompts, asked)
    assert [output.error for output in together] == [None] * 5
    for answer in (*together[0].outputs, *together[3].outputs):
        if answer.finish_reason == "stop":
            check(answer.text, SMALL)
    assert sum(a.finish_reason == "stop" for a in together[0].outputs) > 0
    assert re.fullmatch("[ab]{4}", together[2].outputs[0].text or "")
    assert together[4].outputs[0].text in ("yes", "no")
    assert together[4].outputs[0].finish_reason == "stop"
    alone = [llm.generate(p, a) for p, a in zip(prompts, asked, strict=True)]
    assert told(together) == told([output for outputs in alone for output in outputs])


def test_it_travels_to_another_process(llm: LLM, folder: Path) -> None:
    """The masks and their arrays on the wire, and the stage that sleeps while it waits."""
    asked = [params(Structured(json_schema=SMALL)), params(None, max_tokens=8)] * 2
    prompts = ["one", "two", "three", "four"]
    with LLM(folder, engine_factory=FACTORY, **SIZES) as remote:
        assert told(remote.generate(prompts, asked)) == told(llm.generate(prompts, asked))


@pytest.mark.parametrize(
    "options",
    mostly_slow(
        (
            {"strategy": "cohort"},
            {"exit_mode": "full"},
            {"kv_layout": "shared"},
        ),
        {"strategy": "cohort"},
    ),
    ids=str,
)
def test_strategies_and_layouts(llm: LLM, folder: Path, options: dict[str, Any]) -> None:
    """A cohort that waits for one row's mask for ever; rows that go on to full depth behind a
    read-out that waits for its mask; prompts that go position by position."""
    form = Structured(json_schema=SMALL)
    asked = [params(form), params(None, max_tokens=8), params(form, temperature=0)]
    with LLM(folder, engine_factory=FACTORY, in_process=True, **{**SIZES, **options}) as other:
        together = other.generate(["a", "b", "c"], asked)
        alone = [other.generate(p, a)[0] for p, a in zip("abc", asked, strict=True)]
    assert told(together) == told(alone)
    for output in (together[0], together[2]):
        if output.outputs[0].finish_reason == "stop":
            check(output.outputs[0].text, SMALL)


def test_a_fault_of_one_grammar_fails_one_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before it is sent, or stuck in the middle: told in the grammar's own words, while
    the others are served; nobody waits for a mask that never comes."""
    bad = params(Structured(json_schema={"type": "strng"}))
    good, plain = params(Structured(regex="[ab]{3}")), params(None, max_tokens=4)
    first, second, third = llm.generate(["a", "b", "c"], [bad, good, plain])
    assert isinstance(first.error, RequestError)
    assert first.error.field == "json_schema"
    assert "strng" in str(first.error)
    assert (second.error, third.error) == (None, None)
    inner = Constraint.take

    def breaks(self: Constraint, token: int) -> None:
        inner(self, token)
        if self.num_taken == 2:
            raise KeyError("planted")

    monkeypatch.setattr(Constraint, "take", breaks)
    stuck, other = llm.generate(["b", "c"], [good, plain])
    assert "planted" in str(stuck.error)
    assert told([other]) == told([third])

    def errs(self: Constraint, token: int) -> None:
        inner(self, token)
        self.error = "planted here"

    monkeypatch.setattr(Constraint, "take", errs)
    stuck, other = llm.generate(["b", "c"], [good, plain])
    assert "planted here" in str(stuck.error)
    assert told([other]) == told([third])


def test_a_stream_that_is_left_frees_its_row(llm: LLM) -> None:
    """An abort while the row is parked, or its mask on the way; the slots serve again."""
    form, whole = Structured(regex="[a-z]{40}"), []
    for most in (1, 2, 5):
        for i, increment in enumerate(llm.stream("x", params(form))):
            whole.append(increment.text)
            if i + 1 == most:
                break
    assert "".join(whole[1:3]) == "".join(whole[3:5])
    asked = [params(form, max_tokens=6)] * 6
    assert [o.error for o in llm.generate(["x"] * 6, asked)] == [None] * 6


def test_stop_strings_and_limits_end_it_as_any_answer(llm: LLM) -> None:
    """A stop string inside of the form, and max_tokens in the middle of it."""
    (output,) = llm.generate("x", params(Structured(regex="ab{1,30}"), stop=["b"]))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("a", "stop")
    (output,) = llm.generate("x", params(Structured(regex="[ab]{9}"), max_tokens=4))
    assert re.fullmatch("[ab]{4}", output.outputs[0].text or "")
    assert output.outputs[0].finish_reason == "length"


def test_a_chat_thinks_before_it_is_bound(llm: LLM) -> None:
    """A prompt that ends in an open think block: no thought, or no form, was left of the answer."""
    bias = {ord(letter): 60.0 for letter in "</think>"}
    (output,) = llm.chat(
        [user("hi")],
        params(Structured(choice=["yes", "no"]), max_tokens=16, logit_bias=bias),
        chat_template=THINKS,
    )
    answer = output.outputs[0]
    # It hardly closes the block by chance; while it thinks, it may say anything but the end.
    assert answer.finish_reason == "length"
    assert answer.reasoning
    assert answer.text == ""
    (output,) = llm.chat(
        [user("hi")], params(Structured(choice=["yes", "no"])), chat_template=THINKS[:-7]
    )
    assert output.outputs[0].text in ("yes", "no")


def test_an_event_loop_serves_them_too(llm: LLM, folder: Path) -> None:
    """AsyncLLM: grammars are compiled in its text threads, masks made in another, and an answer
    that nobody waits for leaves nothing behind."""
    asked = [params(Structured(json_schema=SMALL)), params(None, max_tokens=8)]

    async def serve() -> list[RequestOutput]:
        async with AsyncLLM(folder, engine_factory=FACTORY, in_process=True, **SIZES) as served:
            with pytest.raises(RequestError, match="strng"):
                await served.generate("a", params(Structured(json_schema={"type": "strng"})))
            async with served.stream("x", params(Structured(regex="[a-z]{50}"))) as stream:
                async for _ in stream:
                    break
            calls = (served.generate(p, a) for p, a in zip(("one", "two"), asked, strict=True))
            found = await asyncio.gather(*calls)
            assert (await served.stats()).slots_used == 0
            return list(found)

    assert told(asyncio.run(serve())) == told(llm.generate(["one", "two"], asked))


def test_a_model_without_a_tokenizer_refuses_it(tmp_path: Path) -> None:
    """Nothing can be masked by text where tokens have none."""
    made = write_checkpoint(tmp_path / "b", "b")
    with LLM(made, engine_factory=FACTORY, in_process=True, **SIZES) as numbers:
        with pytest.raises(RequestError, match="needs a tokenizer"):
            numbers.generate({"prompt_token_ids": [1]}, params(Structured(json_schema=PERSON)))
