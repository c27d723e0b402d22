"""What came of the requests of a load, and what it amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

QUANTILES = (50, 90, 99)


@dataclass(slots=True, kw_only=True)
class Answered:
    """One request, in seconds from the start of the load. arrived: when it was due, not when a
    place among the open ones was found for it: waiting for one counts. came: (time, tokens) of
    each piece of the answer. num_loops: the sum of the exit depths, None where they are unknown.
    error: its kind, None where all tokens came; detail: what was said of it."""

    arrived: float
    prompt_len: int
    num_tokens: int
    came: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    num_loops: int | None = None
    error: str | None = None
    detail: str = ""

    @property
    def made(self) -> int:
        """Tokens that came."""
        return sum(num for _, num in self.came)

    @property
    def ttft(self) -> float:
        """Until the first token."""
        return self.came[0][0] - self.arrived

    @property
    def tpot(self) -> float | None:
        """Of each token after the first, on average; None where there is none."""
        first, last = self.came[0], self.came[-1]
        later = self.made - first[1]
        return (last[0] - first[0]) / later if later else None

    @property
    def e2e(self) -> float:
        """Until the end."""
        return self.ended - self.arrived

    @property
    def itl(self) -> list[float]:
        """Before each token after the first; pieces of several tokens share theirs out."""
        found: list[float] = []
        for (before, _), (now, num) in zip(self.came, self.came[1:], strict=False):
            found += [(now - before) / num] * num
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an answer must keep to count as good, in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None

    def keeps(self, answered: Answered) -> bool:
        """Whether an answer without an error does."""
        tpot = answered.tpot
        slow = self.ttft is not None and answered.ttft > self.ttft
        return not slow and (self.tpot is None or tpot is None or tpot <= self.tpot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A load in numbers. Times by name: {"ttft_ms": {"p50": ..., ...}, ...}; empty where nothing
    was answered. errors, details: by kind, how many there were and what was said of the first.
    seconds: from the start to the last answer. late_s: the most that the client was behind its own
    plan when it sent a request."""

    num_requests: int
    num_answered: int
    seconds: float
    late_s: float
    errors: dict[str, int]
    details: dict[str, str]
    times: dict[str, dict[str, float]]
    prompt_tokens: int
    tokens: int
    num_good: int
    mean_depth: float | None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "requests": self.num_requests,
            "answered": self.num_answered,
            "seconds": self.seconds,
            "late_s": self.late_s,
            "errors": self.errors,
            **self.times,
            "requests_per_s": self.num_answered / self.seconds,
            "prompt_tokens_per_s": self.prompt_tokens / self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "goodput_per_s": self.num_good / self.seconds,
            "good_share": self.num_good / max(1, self.num_requests),
            "mean_depth": self.mean_depth,
        }


def summary(answers: Sequence[Answered], limits: Limits, late_s: float) -> Summary:
    """What these amount to."""
    whole = [one for one in answers if one.error is None]
    known = [one for one in whole if one.num_loops is not None]
    series = samples(whole)
    return Summary(
        num_requests=len(answers),
        num_answered=len(whole),
        seconds=max([1e-9, *(one.ended for one in answers)]),
        late_s=late_s,
        errors=dict(Counter(one.error for one in answers if one.error is not None)),
        details={one.error: one.detail for one in reversed(answers) if one.error is not None},
        times={f"{name}_ms": _quantiles(values) for name, values in series.items() if values},
        prompt_tokens=sum(one.prompt_len for one in whole),
        tokens=sum(one.made for one in whole),
        num_good=sum(map(limits.keeps, whole)),
        mean_depth=sum(one.num_loops or 0 for one in known) / sum(one.made for one in known)
        if known
        else None,
    )


def samples(whole: Sequence[Answered]) -> dict[str, list[float]]:
    """Every time of answers without an error, in seconds."""
    return {
        "ttft": [one.ttft for one in whole],
        "tpot": [one.tpot for one in whole if one.tpot is not None],
        "itl": [gap for one in whole for gap in one.itl],
        "e2e": [one.e2e for one in whole],
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(values, q)) * 1e3 for q in QUANTILES}
