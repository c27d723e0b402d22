"""LLM.chat on the scripted engine, whose answer is its own prompt again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import CheckpointError, RequestError
from tests.chat_kit import EOS, assistant, chat_folder, system, template, token_id, user
from tests.scripted_engine import MAX_LEN

FACTORY = "tests.scripted_engine:build"
# The answer begins as the conversation does: with the content of its first message.
OPENED = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
PLAIN = "{{ messages[0].content }}{% for message in messages %}{{ message.role[:0] }}{% endfor %}"


def start(folder: Path, **options: Any) -> LLM:
    tokenizer = options.pop("tokenizer", str(folder))
    return LLM(engine_factory=FACTORY, in_process=True, tokenizer=tokenizer, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("chat"), OPENED)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with start(folder) as made:
        yield made


def asked(text: str, **params: Any) -> tuple[list[dict[str, str]], SamplingParams]:
    """A conversation and the params that give `text` as its answer."""
    params.setdefault("max_tokens", len(text.encode()) - _saved(text))
    return [user(text)], SamplingParams(temperature=0, **params)


def _saved(text: str) -> int:
    """Bytes that the think tags, a token each, save."""
    return 6 * text.count("<think>") + 7 * text.count("</think>")


def test_a_chat_is_generate_of_the_rendered_text(llm: LLM) -> None:
    """A chat's tokens, depths or usage differed from those of the same prompt."""
    messages, params = asked("Hi there", logprobs=2, seed=3)
    (chat,) = llm.chat(messages, params)
    assert chat.prompt == "Hi there<think>\n"
    prompt = {"prompt_token_ids": chat.prompt_token_ids}
    (plain,) = llm.generate([prompt], params)
    assert chat.outputs[0].token_ids == plain.outputs[0].token_ids
    assert chat.outputs[0].logprobs == plain.outputs[0].logprobs
    assert (chat.exit_depths, chat.usage) == (plain.exit_depths, plain.usage)
    assert (plain.outputs[0].reasoning, plain.outputs[0].text) == (None, "Hi there")
    assert (chat.outputs[0].reasoning, chat.outputs[0].text) == ("Hi there", "")


@pytest.mark.parametrize(
    ("text", "template", "reasoning", "answer"),
    [
        ("abc</think>\n\nhello", OPENED, "abc", "hello"),
        ("<think>abc</think>hello", OPENED, "abc", "hello"),
        ("<think> a b c d", PLAIN, "a b c d", ""),
        ("<think>\na\n</think>\n\n漢字", PLAIN, "a", "漢字"),
        ("hello", PLAIN, None, "hello"),
        ("hello </think>", PLAIN, None, "hello </think>"),
        ("a b c", OPENED, "a b c", ""),
        ("a </thi", OPENED, "a </thi", ""),
    ],
)
def test_reasoning_is_kept_apart(
    llm: LLM, text: str, template: str, reasoning: str | None, answer: str
) -> None:
    """CASES A23, A38: the block that the prompt opened was taken as the answer, one that the
    budget cut was dropped; a stream gave other parts than the whole, or a piece of a tag."""
    messages, params = asked(text)
    (output,) = llm.chat(messages, params, chat_template=template)
    (found,) = output.outputs
    assert (found.reasoning, found.text) == (reasoning, answer)
    assert (found.finish_reason, len(found.token_ids)) == ("length", params.max_tokens)
    stream = llm.stream_chat(messages, params, chat_template=template)
    increments = list(stream)
    assert "".join(i.reasoning for i in increments) == (reasoning or "")
    assert "".join(i.text for i in increments) == answer
    assert stream.output.outputs[0].reasoning == reasoning
    assert sum(len(i.token_ids) for i in increments) == params.max_tokens
    thought = text.partition("</think>")[0] if reasoning is not None else ""
    wanted = (
        len(thought.encode()) - _saved(thought) + ("</think>" in text and reasoning is not None)
    )
    assert found.num_reasoning_tokens == sum(i.num_reasoning_tokens for i in increments) == wanted


def test_a_short_budget_inside_the_block(llm: LLM) -> None:
    """CASES A23: three tokens of reasoning were reported as nothing at all."""
    messages, params = asked("<think> a b c d", max_tokens=3)
    (output,) = llm.chat(messages, params, chat_template=PLAIN)
    assert (output.outputs[0].reasoning, output.outputs[0].text) == ("a", "")
    assert output.outputs[0].finish_reason == "length"
    assert output.usage.completion_tokens == 3


def test_tags_that_are_special_tokens(tmp_path: Path) -> None:
    """Special tokens are skipped in the text, and with them the border of the reasoning."""
    folder = chat_folder(tmp_path, OPENED, think_is_special=True)
    with start(folder) as made:
        messages, params = asked("abc</think>\n\nhello")
        (output,) = made.chat(messages, params)
        assert (output.outputs[0].reasoning, output.outputs[0].text) == ("abc", "hello")
        (plain,) = made.generate(["<think>abc"], params.changed(max_tokens=5))
        assert plain.outputs[0].text == "abc"


def test_each_of_n_answers_has_its_own(llm: LLM) -> None:
    """The second answer went on in the first one's think block."""
    messages, params = asked("a</think>b", n=3)
    (output,) = llm.chat(messages, params)
    assert [(o.reasoning, o.text) for o in output.outputs] == [("a", "b")] * 3


def test_stop_strings_count_in_the_whole_text(llm: LLM) -> None:
    """A stop string in the reasoning was missed, or the reasoning before it was lost."""
    messages, params = asked("so it</think>yes no")
    for stop, expected in ((" it", ("so", "")), (" no", ("so it", "yes")), ("</t", ("so it", ""))):
        (output,) = llm.chat(messages, params.changed(stop=stop))
        (found,) = output.outputs
        assert (found.reasoning, found.text) == expected
        assert (found.finish_reason, found.stop_reason) == ("stop", stop)


def test_one_bad_conversation_fails_alone(llm: LLM) -> None:
    """CASES A87: one bad conversation of a batch cost the others their answers."""
    good, params = asked("ok</think>ok")
    batch: list[Any] = [good, [], good, [user("a"), system("b")], good, [user("x" * MAX_LEN)], "Hi"]
    outputs = llm.chat(batch, params)
    assert [o.outputs[0].text for o in outputs if o.error is None] == ["ok"] * 3
    errors = [(i, o.error) for i, o in enumerate(outputs) if o.error is not None]
    assert [i for i, _ in errors] == [1, 3, 5, 6]
    assert all(isinstance(error, RequestError) for _, error in errors)
    assert "conversation is empty" in str(errors[0][1])
    assert "system message must be the first" in str(errors[1][1])
    assert "too long: a request may have 4096" in str(errors[2][1])
    assert all(len(str(error).splitlines()) <= 4 for _, error in errors)
    each = [params.changed(max_tokens=n) for n in (1, 2)]
    assert [len(o.exit_depths) for o in llm.chat([good, good], each)] == [1, 2]


@pytest.mark.parametrize("messages", [[], [user("x" * MAX_LEN)], [{"role": "user"}]])
def test_a_single_conversation_raises(llm: LLM, messages: list[Any]) -> None:
    """A wrong conversation gave an empty list, or an output without a text."""
    with pytest.raises(RequestError):
        llm.chat(messages)
    assert isinstance(llm.chat(messages, on_error="return")[0].error, RequestError)
    with pytest.raises(RequestError):
        llm.stream_chat(messages)


@pytest.mark.parametrize("messages", [None, "Hi", 7, user("Hi")])
def test_what_is_no_list_is_a_type_error(llm: LLM, messages: Any) -> None:
    """A single message, or a text, was read letter by letter."""
    with pytest.raises(TypeError, match="messages must be a list"):
        llm.chat(messages)


def test_a_turn_ends_at_the_tokenizer_s_end(llm: LLM, folder: Path) -> None:
    """CASES A41: a chat ran past the end-of-text token that only the tokenizer's files name; the
    token's name was in the text; the end was reported as a stop of the user's."""
    messages, params = asked("a</think>b<eos>c", max_tokens=50)
    (output,) = llm.chat(messages, params)
    (found,) = output.outputs
    assert (found.text, found.finish_reason, found.stop_reason) == ("b", "stop", None)
    assert found.token_ids[-1] == EOS == token_id(folder, "<eos>")
    (output,) = llm.chat(messages, params.changed(ignore_eos=True, max_tokens=12))
    assert output.outputs[0].finish_reason == "length"


def test_a_chat_without_any_end_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    """CASES A41: a converted checkpoint lost its end-of-text ids, and every answer ran on."""
    from tests import scripted_engine

    served = scripted_engine.report(eos_token_ids=())
    monkeypatch.setattr(scripted_engine, "report", lambda: served)
    folder = chat_folder(tmp_path, PLAIN, eos_token=None)
    with start(folder) as made:
        with pytest.raises(RequestError, match="no file of the checkpoint names an end-of-text"):
            made.chat([user("Hi")])
        for params in ({"ignore_eos": True}, {"stop": "i"}, {"stop_token_ids": [5]}):
            assert made.chat([user("Hi")], SamplingParams(**params))[0].error is None
        assert made.generate("Hi")[0].error is None


def test_a_stream_that_is_stopped_keeps_what_came(llm: LLM) -> None:
    """A stopped answer lost its text, or ran on in the stage."""
    messages, params = asked("ab</think>cdefgh", max_tokens=1000)
    stream = llm.stream_chat(messages, params)
    text = ""
    for increment in stream:
        text += increment.text
        if len(text) == 4:
            stream.stop()
    (found,) = stream.output.outputs
    assert (found.reasoning, found.finish_reason) == ("ab", "abort")
    assert found.text == text
    assert text.startswith("cdef")
    assert stream.output.finished
    assert llm.chat(*asked("a</think>b"))[0].outputs[0].text == "b"


def test_without_template_or_tokenizer(tmp_path: Path) -> None:
    """A missing template or tokenizer was an AttributeError."""

    class NoChat:
        special_ids: frozenset[int] = frozenset()

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def piece(self, previous: int | None, token: int) -> bytes:
            return bytes([token])

    bare = chat_folder(tmp_path)
    for tokenizer, says in (
        (str(bare), "it has no chat template"),
        (None, "it has no tokenizer, so a chat cannot be read"),
        (NoChat(), "NoChat has no encode_rendered"),
    ):
        with start(bare, tokenizer=tokenizer) as made, pytest.raises(CheckpointError, match=says):
            made.chat([user("Hi")])


def test_history_goes_on(tmp_path: Path) -> None:
    """CASES A38: the reasoning of an earlier turn was written twice, or not at all."""
    with start(chat_folder(tmp_path, template("tools"))) as made:
        messages = [user("1"), assistant("2", reasoning_content="so"), user("3")]
        (output,) = made.chat(messages, SamplingParams(max_tokens=1))
        assert output.prompt is not None
        assert output.prompt.count("<think>\nso\n</think>\n\n2<|im_end|>") == 1
        assert output.prompt.endswith("<|im_start|>assistant\n<think>\n")
