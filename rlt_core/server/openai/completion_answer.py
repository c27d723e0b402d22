"""One of the answers of a completions request, as its text and logprobs grow."""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.api.async_stream import AsyncStream
from rlt_core.api.outputs import Increment, Logprob
from rlt_core.api.tokenizer import Tokenizer, decode_all
from rlt_core.server.openai.completion_request import CompletionRequest
from rlt_core.server.openai.completion_response import (
    CompletionChoice,
    CompletionLogprobs,
    FinishReason,
)
from rlt_core.server.openai.logprobs import CompletionTexts, token_text, token_texts

Tables = Sequence[dict[int, Logprob] | None]


class CompletionAnswer:
    """Makes a choice of each increment, and one of the echoed prompt."""

    def __init__(
        self,
        index: int,
        body: CompletionRequest,
        prompt: list[int],
        prompt_text: str | None,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.index, self.prompt, self._body = index, prompt, body
        self._tokenizer = tokenizer
        self._echo = ""
        if body.echo:
            self._echo = echoed(prompt, prompt_text, tokenizer)
        self._texts = self._make_texts(prompt, len(self._echo))

    def echo(self, tables: Tables | None) -> CompletionChoice:
        """The prompt, with its logprobs where they are asked for."""
        logprobs = None
        if tables is not None:
            names = token_texts(self._tokenizer, None, self.prompt)
            logprobs = self._make_texts((), 0).logprobs(self.prompt, tables, names)
        choice = CompletionChoice(
            index=self.index, text=self._echo, logprobs=logprobs, finish_reason=None
        )
        return self._with(choice, (), ())

    def take(self, increment: Increment) -> CompletionChoice:
        """What the answer gained."""
        logprobs = None
        if increment.logprobs is not None:
            tokens, tables = increment.token_ids, increment.logprobs
            pairs = zip(tokens, tables, strict=True)
            names = [token_text(token, table[token].token_bytes) for token, table in pairs]
            logprobs = self._texts.logprobs(tokens, tables, names)
        choice = CompletionChoice(
            index=self.index,
            text=increment.text,
            logprobs=logprobs,
            finish_reason=finish_reason(increment.finish_reason),
        )
        if increment.stop_reason is not None:
            choice.stop_reason = increment.stop_reason
        return self._with(choice, increment.exit_depths, increment.token_ids)

    def _with(
        self, choice: CompletionChoice, depths: Sequence[int], tokens: Sequence[int]
    ) -> CompletionChoice:
        if self._body.return_exit_depths:
            choice.exit_depths = list(depths)
        if self._body.return_token_ids:
            choice.token_ids = list(tokens)
        return choice

    def _make_texts(self, prompt: Sequence[int], start: int) -> CompletionTexts:
        skip = self._body.skip_special_tokens is not False
        return CompletionTexts(self._tokenizer, prompt, start=start, skip_special=skip)


def merged(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """The parts of one answer as one choice."""
    whole = parts[-1].model_copy()
    whole.text = "".join(part.text for part in parts)
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    whole.logprobs = _joined(logprobs) if logprobs else None
    if whole.exit_depths is not None:
        whole.exit_depths = [depth for part in parts for depth in part.exit_depths or ()]
    if whole.token_ids is not None:
        whole.token_ids = [token for part in parts for token in part.token_ids or ()]
    return whole


def _joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[item for part in parts for item in part.tokens],
        token_logprobs=[item for part in parts for item in part.token_logprobs],
        top_logprobs=[item for part in parts for item in part.top_logprobs],
        text_offset=[item for part in parts for item in part.text_offset],
    )


def echoed(tokens: Sequence[int], text: str | None, tokenizer: Tokenizer | None) -> str:
    """The prompt as an echo shows it: the text as it was given, or that of the token ids."""
    if text is not None:
        return text
    return "" if tokenizer is None else decode_all(tokenizer, tokens)


def finish_reason(reason: str | None) -> FinishReason | None:
    """The API's word; an answer that the server itself ended has no other than stop."""
    if reason is None:
        return None
    return "length" if reason == "length" else "stop"


def prompt_tables(stream: AsyncStream) -> Tables:
    """The logprobs of a stream's prompt, there once its first answer has begun."""
    found = stream.output.prompt_logprobs
    return found if found is not None else [None] * len(stream.prompt_token_ids)
