"""Who comes when and asks what: an open load, which does not wait for answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlt_core.bench.depths import Depths
from rlt_core.bench.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. at: seconds from the start. trace: the depths it replays, or None."""

    number: int
    at: float
    prompt: list[int]
    num_tokens: int
    trace: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is known of the model that is asked. token_ids: those that prompts are drawn from."""

    name: str
    max_len: int
    loops: int | None
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """rate: requests a second on average (Poisson); num_requests, or as many as come within
    `duration` seconds. scale: of the lengths."""

    lengths: Lengths
    rate: float
    num_requests: int | None
    duration: float | None
    scale: float = 1.0
    depths: Depths | None = None
    seed: int = 0


def arrivals(offer: Offer, served: Served) -> list[Ask]:
    """The requests, the same ones for a seed. Each draws from a generator of its own, so that a
    request does not depend on how many there are."""
    clock = np.random.default_rng((offer.seed, 0))
    asks: list[Ask] = []
    at = 0.0
    while offer.num_requests is None or len(asks) < offer.num_requests:
        at += float(clock.exponential(1 / offer.rate))
        if offer.duration is not None and at > offer.duration:
            break
        asks.append(_ask(offer, served, len(asks), at))
    return asks


def warm_up(offer: Offer, served: Served, num: int) -> list[Ask]:
    """Requests of the same kind, all at once, other ones than those that are measured."""
    return [_ask(offer, served, -1 - i, 0.0) for i in range(num)]


def _ask(offer: Offer, served: Served, number: int, at: float) -> Ask:
    rng = np.random.default_rng((offer.seed, 1, number % (1 << 32)))
    prompt_len, num_tokens = offer.lengths.draw(rng, served.max_len, offer.scale)
    ids = np.asarray(served.token_ids)
    trace = None
    if offer.depths is not None and served.loops is not None:
        # The prompt's own output is at full depth.
        later = offer.depths.trace(number % (1 << 32), served.loops, num_tokens)
        trace = [served.loops, *later[1:].tolist()]
    return Ask(
        number=number,
        at=at,
        prompt=rng.choice(ids, prompt_len).tolist(),
        num_tokens=num_tokens,
        trace=trace,
    )
