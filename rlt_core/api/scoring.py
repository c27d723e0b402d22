"""Scoring a text."""

from __future__ import annotations

from collections.abc import Mapping

from rlt_core.api.batch import score_tables
from rlt_core.api.collector import Collector
from rlt_core.api.outputs import ScoreOutput
from rlt_core.api.prompts import read_prompt
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams, check_integer
from rlt_core.api.tokenizer import Tokenizer


class Scoring:
    """One text to score; RequestError at once when it is refused."""

    def __init__(
        self,
        text: object,
        prompt_len: int,
        params: SamplingParams,
        builder: RequestBuilder,
        tokenizer: Tokenizer | None,
        request_id: int,
    ) -> None:
        check_integer("prompt_len", prompt_len, 0, None)
        if not isinstance(text, (str, Mapping)):
            text = {"prompt_token_ids": text}
        tokens = read_prompt(text, builder, tokenizer).tokens
        request = builder.score(tokens, prompt_len, params, request_id)
        self._collector = Collector(request, params, tokenizer)
        self.collectors = [self._collector]
        self._params, self._tokens = params, tokens.tolist()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._collector.done

    def output(self) -> ScoreOutput:
        """The scores once it is done; the request's error where it failed."""
        if self._collector.error is not None:
            raise self._collector.error
        scores = [self._collector.scores[position] for position in range(len(self._tokens) - 1)]
        tables = None
        if self._params.logprobs is not None:
            tables = score_tables(self._tokens, self._collector)
        return ScoreOutput(
            request_id=self._collector.request.request_id,
            token_ids=self._tokens,
            logprobs=[None, *(score[0] for score in scores)],
            ranks=[None, *(score[1] for score in scores)],
            exit_depths=[None, *(score[2] for score in scores)],
            alternatives=tables,
        )
