"""Masked requests without a grammar: a mask is a function of the tokens so far, late or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from rlt_core.runtime.batch import B8, I32
from rlt_core.runtime.mask_rows import num_words
from rlt_core.schedule.request import RUNNING, EngineRequest
from tests.engines import Answer, Built, collect

Delay = Callable[[], int]


def allowed_after(request_id: int, tokens: list[int], vocab: int) -> B8:
    """Which tokens request `request_id` may draw after these: about a third, one at least."""
    draw = np.random.default_rng([request_id % 100, len(tokens), *tokens])
    allowed: B8 = draw.random(vocab) < 0.3
    allowed[draw.integers(vocab)] = True
    return allowed


def words_of(allowed: B8) -> I32:
    """A mask as it travels; the bits past the vocabulary are set, and nobody's."""
    padded = np.ones(32 * num_words(len(allowed)), bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32)


def masked(request: EngineRequest, vocab: int) -> EngineRequest:
    """The request with its first mask."""
    return replace(request, mask=words_of(allowed_after(request.request_id, [], vocab)))


@dataclass(slots=True)
class MaskedRun:
    """Runs requests; the mask of a next output is sent `delay()` steps after its last token came.

    calls: called after each step with its number, to add, abort or preempt. waits: steps that the
    engine slept through because nothing could run without a mask.
    """

    built: Built
    delay: Delay = lambda: 0
    calls: Callable[[int], None] = lambda step: None
    answers: dict[int, Answer] = field(default_factory=dict)
    waits: int = 0
    _due: list[tuple[int, int, list[int]]] = field(default_factory=list)
    _masked: set[int] = field(default_factory=set)

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue requests."""
        for request in requests:
            self.built.engine.add(request)
            if request.mask is not None:
                self._masked.add(request.request_id)

    def finish(self, most: int = 20_000) -> dict[int, Answer]:
        """Step until all is done; AssertionError when that takes for ever."""
        for step in range(most):
            self._send(step)
            if self.built.engine.has_work:
                self._step(step)
            elif self._due:
                self.waits += 1
            else:
                return self.answers
            self.calls(step)
        raise AssertionError(f"not done after {most} steps")

    def _step(self, step: int) -> None:
        before = {number: len(answer.tokens) for number, answer in self.answers.items()}
        collect(self.answers, self.built.engine.step())
        for number in self._masked & self.answers.keys():
            answer = self.answers[number]
            grown = len(answer.tokens) > before.get(number, 0)
            if grown and answer.finish == RUNNING:
                self._due.append((step + 1 + self.delay(), number, list(answer.tokens)))

    def _send(self, step: int) -> None:
        now = [entry for entry in self._due if entry[0] <= step]
        self._due = [entry for entry in self._due if entry[0] > step]
        if not now:
            return
        vocab = self.built.plan.shape.vocab_size
        self.built.engine.put_masks(
            np.array([number for _, number, _ in now]),
            np.array([len(tokens) for _, _, tokens in now]),
            np.stack([words_of(allowed_after(number, tokens, vocab)) for _, number, tokens in now]),
        )


def late(seed: int, most: int) -> Delay:
    """Delays of 0 to `most` steps."""
    draw = random.Random(seed)
    return lambda: draw.randint(0, most)
