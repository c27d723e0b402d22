"""/v1/completions: texts that go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

from rlt_core.api.outputs import Increment
from rlt_core.server.openai.completion_answer import CompletionAnswer, merged, prompt_tables
from rlt_core.server.openai.completion_request import CompletionRequest
from rlt_core.server.openai.completion_response import Completion, CompletionChoice
from rlt_core.server.openai.renamed import Renamed
from rlt_core.server.openai.scored_prompt import ScoredPrompt
from rlt_core.server.openai.serving import Serving
from rlt_core.server.openai.streams import Streams
from rlt_core.server.openai.usage import UsageCounter


class CompletionRun:
    """The answers of one request: open it, then read it whole or in chunks."""

    def __init__(self, serving: Serving, body: CompletionRequest) -> None:
        self._serving, self._body = serving, body
        self._params = serving.limited(body.params(serving.max_tokens), len(body.prompts))
        self._heading = asdict(serving.heading("cmpl"))
        self._usage = UsageCounter()
        self._echoes_logprobs = body.echo and body.logprobs is not None
        self._answers: list[list[CompletionAnswer]] = []
        self._held: dict[int, list[Increment]] = defaultdict(list)
        self._begun: set[int] = set()
        self._scored: list[ScoredPrompt] = []
        engine, prompts = serving.engine, [] if body.scores_only else body.prompts
        self._streams = Streams(
            [engine.stream(p, self._params, deadline=serving.deadline) for p in prompts],
            body.prompt_names[: len(prompts)],
        )

    async def open(self) -> None:
        """Sends the requests of all prompts, or of none; prompts that are only scored are scored
        here."""
        if self._body.scores_only:
            for prompt, name in zip(self._body.prompts, self._body.prompt_names, strict=True):
                with Renamed.prompt(name):
                    scored = await ScoredPrompt.of(self._serving, prompt, self._params)
                self._scored.append(scored)
                self._add_answers(scored.tokens, scored.text)
            return
        await self._streams.open()
        for place in range(len(self._body.prompts)):
            stream = self._streams[place]
            self._add_answers(stream.prompt_token_ids, stream.prompt_text)

    async def whole(self) -> Completion:
        """All answers once they have ended."""
        parts: dict[int, list[CompletionChoice]] = defaultdict(list)
        async for choice in self._choices():
            parts[choice.index].append(choice)
        choices = [merged(parts[index]) for index in sorted(parts)]
        for choice in choices:
            if self._body.return_token_ids:
                choice.prompt_token_ids = self._answers[choice.index // self._params.n][0].prompt
        return self._headed(choices=choices, usage=self._usage.usage())

    async def chunks(self) -> AsyncIterator[Completion]:
        """What the answers gain, as it comes."""
        async for choice in self._choices():
            if not (choice.text or choice.logprobs or choice.token_ids or choice.finish_reason):
                continue  # all that it gained is held back
            chunk = self._headed(choices=[choice])
            if self._body.continuous_usage:
                chunk.usage = self._usage.usage()
            elif self._body.include_usage:
                chunk.usage = None  # the API has it in every chunk
            yield chunk
        if self._body.include_usage:
            yield self._headed(choices=[], usage=self._usage.usage())

    @property
    def used(self) -> UsageCounter:
        """What it has used so far."""
        return self._usage

    def close(self) -> None:
        """Aborts what still runs."""
        self._streams.close()

    def _add_answers(self, tokens: list[int], text: str | None) -> None:
        self._usage.prompt_tokens += len(tokens)
        first, tokenizer = len(self._answers) * self._params.n, self._serving.engine.tokenizer
        self._answers.append(
            [
                CompletionAnswer(first + i, self._body, tokens, text, tokenizer)
                for i in range(self._params.n)
            ]
        )

    async def _choices(self) -> AsyncIterator[CompletionChoice]:
        if self._scored:
            for answers, scored in zip(self._answers, self._scored, strict=True):
                for answer in answers:
                    choice = answer.echo(scored.tables)
                    choice.finish_reason = "length"
                    yield choice
            return
        if self._body.echo and not self._echoes_logprobs:
            for answers in self._answers:
                for answer in answers:
                    yield answer.echo(None)
        async for place, increment in self._streams.increments():
            for choice in self._take(place, increment):
                yield choice
        for place in range(len(self._answers)):
            self._usage.cached_tokens += self._streams[place].output.usage.cached_tokens

    def _take(self, place: int, increment: Increment) -> Iterator[CompletionChoice]:
        """An increment's choice. Where the prompt's logprobs come first, answers wait until the
        first sibling has begun: it is the one that reads the prompt."""
        if self._echoes_logprobs and place not in self._begun:
            self._held[place].append(increment)
            if increment.index:
                return
            self._begun.add(place)
            tables = prompt_tables(self._streams[place])
            yield from (answer.echo(tables) for answer in self._answers[place])
            for held in self._held.pop(place):
                yield self._taken(place, held)
        else:
            yield self._taken(place, increment)

    def _taken(self, place: int, increment: Increment) -> CompletionChoice:
        self._usage.take(increment)
        return self._answers[place][increment.index].take(increment)

    def _headed(self, **fields: Any) -> Completion:
        return Completion(**self._heading, object="text_completion", **fields)
