"""Long prompts that arrive among decoding requests, and those alone: runs, timed event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

from rlt_core.bench.decode import random_prompts
from rlt_core.bench.subject import Lengths, Subject
from rlt_core.contract.errors import RltError
from rlt_core.plugins.plan import Plan
from rlt_core.schedule.request import EngineRequest

WARM_TOKENS = 2
# Prompts that went on decoding would be more work for the modes that end the first ones early.
ANSWER = 1

# Seconds before a token, by request and the token's index.
Waits = dict[tuple[int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`decodes` requests with prompts of `context` tokens decode; after `quiet` tokens of one,
    `prompts` prompts of `prompt_len` tokens arrive, one every `every` ticks (0: all at once)."""

    decodes: int
    context: int
    quiet: int
    prompts: int
    prompt_len: int
    every: int
    seed: int = 0

    def short(self, chunk_size: int) -> Scene:
        """One that is soon over, with ticks of the same kinds."""
        context, prompt_len = (min(n, chunk_size) for n in (self.context, self.prompt_len))
        return replace(self, context=context, prompt_len=prompt_len, prompts=1, quiet=1)

    def busy_tokens(self, plan: Plan, chunk_size: int, budget: int) -> int:
        """That a decoding request makes while there are prompts, at most. List scheduling leaves
        no place idle while a prompt waits, and so is late by less than one prompt (Graham 1966)."""
        chunks, width = -(-self.prompt_len // chunk_size), max(1, budget // chunk_size)
        late = chunks * (width - 1) + self.prompts * (ANSWER + 1) * width
        ticks = plan.shape.loops * (4 - (-(self.prompts * chunks + late) // width))
        # A strategy that guesses gives up to a token a tick.
        pace = plan.shape.loops if not plan.draft_depth else 1
        return (ticks + self.prompts * self.every) // pace + 1

    def decoded(self, plan: Plan, chunk_size: int, budget: int) -> int:
        """Tokens of a decoding request, which must not end before the prompts have."""
        return WARM_TOKENS + self.quiet + self.busy_tokens(plan, chunk_size, budget)

    def lengths(self, plan: Plan, chunk_size: int, budget: int) -> list[Lengths]:
        """Of every resident."""
        most = self.context + self.decoded(plan, chunk_size, budget)
        decoding = Lengths(prompt=self.context, total=most)
        arriving = Lengths(prompt=self.prompt_len, total=self.prompt_len + ANSWER)
        return [decoding] * self.decodes + [arriving] * self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run gave. waits: of the decoding requests, from the first arrival until all prompts
    have their first tokens. first: seconds from each arrival to its first token. total, ticks: from
    the first arrival to the last first token. tokens: of every request, the decoding ones first."""

    waits: Waits
    first: list[float]
    total: float
    ticks: int
    tokens: list[list[int]]


class Arrivals:
    """One run in an engine that has no other requests."""

    def __init__(self, subject: Subject, scene: Scene, chunk_size: int) -> None:
        self._engine, self._scene, self._plan = subject.engine, scene, subject.plan
        self._first = subject.first
        self._sizes = subject.plan, chunk_size, subject.parts.sizes.engine.num_places
        num = scene.decodes + scene.prompts
        self._tokens: list[list[int]] = [[] for _ in range(num)]
        self._times: list[list[float]] = [[] for _ in range(num)]
        self._decoding, self._arriving = range(scene.decodes), range(scene.decodes, num)
        self._ticks = 0

    def alone(self) -> Waits:
        """The decoding requests without the prompts, for at least as many tokens."""
        self._start()
        self._until(self._decoding, self._scene.decoded(*self._sizes))
        self._end()
        return self._waits(0.0, perf_counter())

    def run(self) -> Seen:
        """The quiet stretch, then the arrivals; all requests have ended then."""
        self._start()
        # Until the first of them: where tokens are guessed, others are behind.
        while max(map(len, self._tokens)) < WARM_TOKENS + self._scene.quiet:
            self._step()
        before, arrived = self._ticks, self._arrive()
        self._until(self._arriving, 1)
        ticks, ended = self._ticks - before, max(self._times[i][0] for i in self._arriving)
        # Each wait that began counts with its whole length.
        made = [len(self._tokens[i]) for i in self._decoding]
        for index, num in zip(self._decoding, made, strict=True):
            self._until([index], num + 1)
        waits = self._waits(arrived[0], ended)
        self._end()
        return Seen(
            waits=waits,
            first=[self._times[i][0] - at for i, at in zip(self._arriving, arrived, strict=True)],
            total=ended - arrived[0],
            ticks=ticks,
            tokens=self._tokens,
        )

    def _start(self) -> None:
        """The decoding requests' own prompts; then all of them begin in one tick."""
        if self._first is None:
            raise RuntimeError("decode rows must wait for the first prompts (prompts_first)")
        self._first.over = False
        for index in self._decoding:
            self._add(index, self._scene.context, self._scene.decoded(*self._sizes))
        self._until(self._decoding, 1)
        self._first.over = True

    def _arrive(self) -> list[float]:
        """Hand over the prompts; when each was."""
        arrived = []
        for index in self._arriving:
            arrived.append(perf_counter())
            self._add(index, self._scene.prompt_len, ANSWER)
            for _ in range(self._scene.every if index != self._arriving[-1] else 0):
                self._step()
        return arrived

    def _add(self, index: int, length: int, max_tokens: int) -> None:
        loops = self._plan.shape.loops
        (prompt,) = random_prompts(self._plan, length, 1, self._scene.seed + index)
        request = EngineRequest(
            request_id=index,
            prompt=prompt,
            max_tokens=max_tokens,
            loops=loops,
            max_loops=loops,
            use_policy=False,
            num_logprobs=-1,
        )
        self._engine.add(request)

    def _until(self, which: Sequence[int], made: int) -> None:
        """Until each of these has made so many tokens."""
        while min(len(self._tokens[i]) for i in which) < made:
            if not self._engine.has_work:
                raise RuntimeError(f"all requests ended before {which} had {made} tokens each")
            self._step()

    def _step(self) -> None:
        events = self._engine.step()
        now, self._ticks = perf_counter(), self._ticks + 1
        if events.errors:
            raise RltError(
                f"a request failed: {next(iter(events.errors.values()))}\n"
                "Fix: other weights; another seed of --random-weights"
            )
        for index, token in zip(events.request_id.tolist(), events.token.tolist(), strict=True):
            if token >= 0:
                self._tokens[index].append(token)
                self._times[index].append(now)

    def _waits(self, after: float, until: float) -> Waits:
        """Of the decoding requests, those that share some time with this stretch."""
        return {
            (index, token): now - last
            for index in self._decoding
            for token, (last, now) in enumerate(pairwise(self._times[index]), 1)
            if after < now and last < until
        }

    def _end(self) -> None:
        for index in self._decoding:
            self._engine.abort(index)
        while self._engine.has_work:
            self._engine.step()
