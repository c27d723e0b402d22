"""Lengths of prompts and answers as users' are: drawn from log-normal distributions.

Of a log-normal the mean is exp(mu + sigma^2 / 2); each kind is given by its mean, which is
published, and its sigma, which is our choice (most requests short, a long tail):

- sharegpt: conversations. Prompts of 161.31 tokens and answers of 337.99 on average, as in figure
  11 of Kwon et al., "Efficient Memory Management for Large Language Model Serving with
  PagedAttention" (2023). sigma 1.2 and 0.9.
- alpaca: instructions. 19.31 and 58.45 tokens, from the same figure. sigma 0.6 and 0.9.
- documents: long texts with short answers. Prompts of 8,725 tokens: LongBench (Bai et al., 2023)
  says 6,711 words for its English part, taken at 1.3 tokens a word. Answers of 128 tokens are our
  choice. sigma 0.6 and 0.6.

Lengths are whole numbers of 1 or more, answers of 2 or more (else there is no time between tokens),
and none is above 16 times its mean. What is longer than the model allows is cut: first the prompt,
down to half of what the model has, then the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlt_core.contract.errors import UnknownNameError

_MOST_MEANS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """mean: of the lengths. sigma: of their logarithms."""

    mean: float
    sigma: float

    def draw(self, rng: np.random.Generator, scale: float) -> float:
        """One length, with the mean times `scale`."""
        mean = self.mean * scale
        drawn = rng.lognormal(math.log(mean) - self.sigma**2 / 2, self.sigma)
        return float(min(drawn, _MOST_MEANS * mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Of prompts and answers, in tokens."""

    prompt: LogNormal
    answer: LogNormal

    def draw(self, rng: np.random.Generator, most: int, scale: float) -> tuple[int, int]:
        """(prompt, answer) of a request that may have `most` tokens together."""
        prompt = max(1, round(self.prompt.draw(rng, scale)))
        answer = max(2, round(self.answer.draw(rng, scale)))
        if prompt + answer > most:
            prompt = max(min(prompt, most // 2), most - answer, 1)
            answer = min(answer, most - prompt)
        return prompt, answer


LENGTHS = {
    "sharegpt": Lengths(
        prompt=LogNormal(mean=161.31, sigma=1.2), answer=LogNormal(mean=337.99, sigma=0.9)
    ),
    "alpaca": Lengths(
        prompt=LogNormal(mean=19.31, sigma=0.6), answer=LogNormal(mean=58.45, sigma=0.9)
    ),
    "documents": Lengths(
        prompt=LogNormal(mean=8725.0, sigma=0.6), answer=LogNormal(mean=128.0, sigma=0.6)
    ),
}


def lengths_of(name: str) -> Lengths:
    """Those of this name; UnknownNameError."""
    if name not in LENGTHS:
        raise UnknownNameError("distribution of lengths", name, LENGTHS)
    return LENGTHS[name]
