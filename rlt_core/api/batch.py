"""One call's prompts on their way: what was refused at once, and what the stage works on."""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.api.collector import Collector
from rlt_core.api.constraint import Constraint
from rlt_core.api.outputs import Logprob, RequestOutput, Usage
from rlt_core.api.prompts import check_text_options, read_prompt
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.api.turn import Turn
from rlt_core.contract.errors import RequestError
from rlt_core.schedule.request import EngineRequest


class Entry:
    """One prompt and its n answers; a refused one has an error and no collectors."""

    def __init__(
        self,
        prompt: object,
        params: SamplingParams,
        builder: RequestBuilder,
        tokenizer: Tokenizer | None,
        request_ids: Sequence[int],
    ) -> None:
        self.params, self.request_id = params, request_ids[0]
        self.text: str | None = prompt if isinstance(prompt, str) else None
        self.tokens: list[int] = []
        self.collectors: list[Collector] = []
        self._refused: RequestError | None = None
        try:
            read = read_prompt(prompt, builder, tokenizer)
            self.text, self.tokens = read.text, read.tokens.tolist()
            check_text_options(params, tokenizer)
            end_ids = None if read.turn is None else read.turn.end_ids
            requests = builder.generate(read.tokens, params, request_ids, turn_end_ids=end_ids)
            self.collectors = [
                Collector(
                    request,
                    params,
                    tokenizer,
                    i,
                    read.turn,
                    constrain(request, params, builder, tokenizer, read.turn),
                )
                for i, request in enumerate(requests)
            ]
        except RequestError as error:
            self._refused = error

    @property
    def error(self) -> RequestError | None:
        """Why it was refused or failed."""
        return self._refused or next((c.error for c in self.collectors if c.error), None)

    @property
    def done(self) -> bool:
        """Whether all answers have ended."""
        return all(collector.done for collector in self.collectors)

    def output(self, builder: RequestBuilder) -> RequestOutput:
        """What the user gets."""
        error = self.error
        outputs = [] if error else [collector.output() for collector in self.collectors]
        depths = [depth for output in outputs for depth in output.exit_depths]
        seed = self.collectors[0].request.seed if self.collectors else None
        sampling = builder.sampling(self.params)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.text,
            prompt_token_ids=self.tokens,
            outputs=outputs,
            usage=Usage(
                prompt_tokens=len(self.tokens),
                completion_tokens=len(depths),
                num_loops=sum(depths),
                cached_tokens=self.collectors[0].cached_tokens if self.collectors else 0,
            ),
            sampling=sampling if seed is None else {**sampling, "seed": seed},
            from_generation_config=builder.from_checkpoint(self.params),
            prompt_logprobs=None if error else self._prompt_logprobs(),
            error=error,
        )

    def _prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        if self.params.prompt_logprobs is None:
            return None
        return score_tables(self.tokens, self.collectors[0])


def constrain(
    request: EngineRequest,
    params: SamplingParams,
    builder: RequestBuilder,
    tokenizer: Tokenizer | None,
    turn: Turn | None,
) -> Constraint | None:
    """The constraint of an answer, whose request gets its first mask; None where any form does."""
    if params.structured is None:
        return None
    found, request.mask = builder.constraints.start(
        params.structured, tokenizer, request.stop_ids, turn
    )
    return found


class Batch:
    """The entries of one call."""

    def __init__(self, entries: list[Entry], builder: RequestBuilder) -> None:
        self.entries, self._builder = entries, builder
        self.collectors = [c for entry in entries for c in entry.collectors]
        self._num_done = 0

    @property
    def done(self) -> bool:
        """Whether everything has ended. Looks at each entry once it is done only once."""
        while self._num_done < len(self.entries) and self.entries[self._num_done].done:
            self._num_done += 1
        return self._num_done == len(self.entries)

    @property
    def num_finished(self) -> int:
        """Prompts that have ended, in any order."""
        return sum(entry.done for entry in self.entries)

    def outputs(self) -> list[RequestOutput]:
        """What the user gets, in the order of the prompts."""
        return [entry.output(self._builder) for entry in self.entries]


def score_tables(tokens: Sequence[int], collector: Collector) -> list[dict[int, Logprob] | None]:
    """Per token of a text: id -> Logprob of it and the alternatives; None for the first."""
    tables: list[dict[int, Logprob] | None] = [None]
    for position in range(len(tokens) - 1):
        found = collector.scores.get(position)
        if found is None:
            tables.append(None)
            continue
        logprob, rank, _, others = found
        previous, token = tokens[position], tokens[position + 1]
        tables.append(collector.table(previous, token, logprob, rank, others))
    return tables
