"""Prompts that cannot be read, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlt_core.api.llm import LLM
from rlt_core.contract.errors import RequestError
from tests.app_kit import run, scripted
from tests.test_llm import FACTORY, Bytes, ids


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(engine_factory=FACTORY, in_process=True, tokenizer=Bytes()) as made:
        yield made


@pytest.mark.parametrize("text", [["ab", "cd"], [ids(1), ids(2)], ("ab",)])
def test_several_texts_are_not_scored_at_once(llm: LLM, text: Any) -> None:
    """A list of texts was read as token ids: "'ab' is not a token id"."""
    with pytest.raises(
        RequestError, match=r"one text is scored at a time(.|\n)*Fix: \[llm.score"
    ) as e:
        llm.score(text)
    assert e.value.field == "text"

    async def scene() -> None:
        async with scripted() as served:
            with pytest.raises(RequestError, match="one text is scored at a time"):
                await served.score(text)
            assert served.num_open == 0

    run(scene())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ab\udcff", r"character 2 is the lone surrogate U\+DCFF \(byte 0xff\)"),
        ("\ud800", r"character 0 is the lone surrogate U\+D800\n"),
    ],
)
def test_text_that_is_no_unicode_says_so(llm: LLM, text: str, said: str) -> None:
    """Bytes of the shell that are no UTF-8 gave "TextInputSequence must be str"."""
    words = Tokenizer(WordLevel({"a": 1}, "a"))
    with LLM(engine_factory=FACTORY, in_process=True, tokenizer=words) as library:
        for model in (llm, library):
            with pytest.raises(RequestError, match=said) as caught:
                model.generate(text)
            assert caught.value.reason.startswith("is not valid Unicode")
