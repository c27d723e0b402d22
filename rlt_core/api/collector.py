"""Gathers one answer: tokens in, text and records out."""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.api.constraint import Constraint
from rlt_core.api.detokenizer import Detokenizer
from rlt_core.api.outputs import CompletionOutput, Drafts, Increment, Logprob
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.stop_strings import StopMatcher
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.api.turn import Turn
from rlt_core.contract.errors import RequestError
from rlt_core.schedule.request import ABORT, FINISH_REASONS, RUNNING, STOP, EngineRequest

Alternatives = Sequence[tuple[int, float]]  # (token id, logprob), best first


class Collector:
    """One engine request on the client's side.

    `take` gets its events in order; `done` is set by the finish code, by a stop string, or by a
    failure. After that nothing changes: tokens behind a stop string are in no record. constraint:
    the form that the answer must have, which the owner follows (api.mask_maker).
    """

    def __init__(
        self,
        request: EngineRequest,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        index: int = 0,
        turn: Turn | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.request, self.index, self.constraint = request, index, constraint
        self.done = False
        self.cached_tokens = 0
        self.error: RequestError | None = None
        self.scores: dict[int, tuple[float, int, int, Alternatives]] = {}
        self._params, self._tokenizer = params, tokenizer
        self._stops = StopMatcher(
            params.stop if isinstance(params.stop, tuple) else (),
            include=params.include_stop_str_in_output,
        )
        self._splitter = None if turn is None else turn.splitter()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._records: list[tuple[int, int, float, int, Alternatives]] = []
        self._finish: str | None = None
        self._stop_reason: int | str | None = None
        self._sent_tokens, self._sent_texts, self._sent_reasoning = 0, 0, 0
        self._num_before_answer, self._sent_num_reasoning = 0, 0
        self._sent_end = False
        self._drafts: tuple[int, int, int] | None = None
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer,
                request.prompt.tolist(),
                skip_special_tokens=params.skip_special_tokens,
                shown=() if turn is None else turn.tag_ids,
            )

    def take(
        self, token: int, depth: int, logprob: float, rank: int, finish: int, others: Alternatives
    ) -> bool:
        """One event. True when a stop string ended the answer, so that the engine must be told."""
        if self.done:
            return False
        if token >= 0:
            self._records.append((token, depth, logprob, rank, others))
            if self._splitter is not None and not self._splitter.closed:
                self._num_before_answer = len(self._records)
            self._take_text(token, finish)
        if self._stops.matched is not None:
            self._end("stop", self._stops.matched)
            return finish == RUNNING
        if finish != RUNNING:
            self._finished(token, finish)
        return False

    def take_draft(self, held: int, wasted: int) -> None:
        """Whether the guess of the token that comes next held (1, 0, or -1 for none), and the loops
        that were for nothing."""
        checked, good, loops = self._drafts or (0, 0, 0)
        self._drafts = (checked + (held >= 0), good + (held == 1), loops + wasted)

    def _all_drafts(self) -> Drafts | None:
        if self._drafts is None:
            return None
        checked, held, wasted = self._drafts
        return Drafts(checked=checked, held=held, wasted_loops=wasted)

    def take_score(
        self, position: int, logprob: float, rank: int, depth: int, others: Alternatives
    ) -> None:
        """The scored token at `position` + 1."""
        self.scores[position] = (logprob, rank, depth, others)

    def stop(self) -> None:
        """Ends the answer with what has come; the engine must be told by the caller."""
        if not self.done:
            self._finished(-1, ABORT)

    def fail(self, error: RequestError) -> None:
        """Ends the request with an error."""
        self.error, self.done = error, True

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it runs, and when it failed."""
        return self._finish

    @property
    def has_news(self) -> bool:
        """Whether `news` has anything to tell."""
        return self._sent_tokens < len(self._records) or (self.done and not self._sent_end)

    def news(self) -> Increment:
        """What was added since the last call."""
        records, texts = self._records[self._sent_tokens :], self._text[self._sent_texts :]
        reasoning = self._reasoning[self._sent_reasoning :]
        num_reasoning = self._num_reasoning - self._sent_num_reasoning
        wants_logprobs = self._params.logprobs is not None
        logprobs = tuple(self._logprobs(self._sent_tokens)) if wants_logprobs else None
        self._sent_num_reasoning += num_reasoning
        self._sent_tokens, self._sent_texts = len(self._records), len(self._text)
        self._sent_reasoning, self._sent_end = len(self._reasoning), self.done
        return Increment(
            index=self.index,
            text="".join(texts),
            token_ids=tuple(record[0] for record in records),
            exit_depths=tuple(record[1] for record in records),
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            reasoning="".join(reasoning),
            num_reasoning_tokens=num_reasoning,
            logprobs=logprobs,
        )

    def output(self) -> CompletionOutput:
        """The answer so far."""
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=None if self._detokenizer is None else "".join(self._text),
            token_ids=[record[0] for record in self._records],
            exit_depths=[record[1] for record in self._records],
            seed=self.request.seed,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            reasoning=self._all_reasoning(),
            num_reasoning_tokens=self._num_reasoning,
            logprobs=self._logprobs() if wants_logprobs else None,
            cumulative_logprob=sum(r[2] for r in self._records) if wants_logprobs else None,
            drafts=self._all_drafts(),
        )

    def table(
        self, previous: int, token: int, logprob: float, rank: int, others: Alternatives
    ) -> dict[int, Logprob]:
        """Token id -> Logprob of a token and the alternatives at its place."""
        found = {token: self._logprob(previous, token, logprob, rank)}
        for place, (other, value) in enumerate(others, 1):
            if other != token:
                found[other] = self._logprob(previous, other, value, place)
        return found

    def _take_text(self, token: int, finish: int) -> None:
        if self._detokenizer is None:
            return
        if finish != STOP or self._params.include_stop_str_in_output:
            self._add(self._stops.feed(self._detokenizer.feed(token)))
        if finish != RUNNING:
            self._add(self._stops.feed(self._detokenizer.flush()))

    def _add(self, text: str) -> None:
        """Text that no stop string can take back."""
        if self._splitter is None:
            self._text.append(text)
        else:
            self._add_parts(*self._splitter.feed(text))

    def _add_parts(self, reasoning: str, answer: str) -> None:
        self._reasoning.append(reasoning)
        self._text.append(answer)

    @property
    def _num_reasoning(self) -> int:
        opened = self._splitter is not None and self._splitter.opened
        return self._num_before_answer if opened else 0

    def _all_reasoning(self) -> str | None:
        opened = self._splitter is not None and self._splitter.opened
        return "".join(self._reasoning) if opened else None

    def _finished(self, token: int, finish: int) -> None:
        reason = None
        if finish == STOP and token in self._params.stop_token_ids:
            reason = token
        if self._detokenizer is not None:
            # An end without a token (abort) has not flushed the detokenizer yet.
            self._add(self._stops.feed(self._detokenizer.flush()) + self._stops.flush())
        self._end(FINISH_REASONS[finish], reason)

    def _end(self, finish: str, reason: int | str | None) -> None:
        if self._splitter is not None:
            self._add_parts(*self._splitter.flush())
        self._finish, self._stop_reason, self.done = finish, reason, True

    def _logprobs(self, start: int = 0) -> list[dict[int, Logprob]]:
        """Of the tokens from index `start`."""
        previous = self._records[start - 1][0] if start else int(self.request.prompt[-1])
        found = []
        for token, _, logprob, rank, others in self._records[start:]:
            found.append(self.table(previous, token, logprob, rank, others))
            previous = token
        return found

    def _logprob(self, previous: int, token: int, logprob: float, rank: int) -> Logprob:
        if self._tokenizer is None:
            return Logprob(logprob=logprob, rank=rank)
        piece = self._tokenizer.piece(previous, token)
        text = piece.decode("utf-8", "replace")
        return Logprob(logprob=logprob, rank=rank, decoded_token=text, token_bytes=piece)
