"""What each exit policy compares with its threshold, one row at a time, in plain torch.

Every function takes what one row shows over all its loops and gives a value a loop: states
[loops + 1, N] from before the first loop on, or logits [loops, V].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BY_STATE = ("latent", "cosine")
BY_LOGITS = ("entropy", "kl", "minp_kl", "argmax")


def latent(states: Tensor) -> list[float]:
    """Length of the move over the length of the new state."""
    return [float((now - was).norm() / now.norm()) for was, now in _pairs(states)]


def cosine(states: Tensor) -> list[float]:
    """1 - cosine of the angle between old and new state."""
    return [float(1 - was @ now / was.norm() / now.norm()) for was, now in _pairs(states)]


def entropy(logits: Tensor) -> list[float]:
    """How far the entropy moved, from 100 nats."""
    p = logits.softmax(-1)
    found = [100.0, *(-(p * torch.log(p + 1e-10)).sum(-1)).tolist()]
    return [abs(now - was) for was, now in zip(found, found[1:], strict=False)]


def kl(logits: Tensor) -> list[float]:
    """Divergence of the new distribution from the old, from a uniform one."""
    return _divergences(logits.softmax(-1))


def minp_kl(logits: Tensor) -> list[float]:
    """The same with 1 / V for all that is less likely than a tenth of the likeliest."""
    p = logits.softmax(-1)
    p[p < 0.1 * p.amax(-1, keepdim=True)] = 1 / p.shape[-1]
    return _divergences(p / p.sum(-1, keepdim=True))


def argmax(logits: Tensor) -> list[float]:
    """Loops in a row that gave the token of the loop before."""
    counts, last = list[float](), -1
    for token in logits.argmax(-1).tolist():
        counts.append(counts[-1] + 1 if token == last else 0)
        last = token
    return counts


CRITERIA: dict[str, Callable[[Tensor], list[float]]] = {
    "latent": latent,
    "cosine": cosine,
    "entropy": entropy,
    "kl": kl,
    "minp_kl": minp_kl,
    "argmax": argmax,
}


def says(name: str, shown: Tensor, threshold: float) -> list[bool]:
    """Whether a row leaves, a loop at a time, computed in float64."""
    values = CRITERIA[name](shown.double())
    return [v >= threshold if name == "argmax" else v < threshold for v in values]


def _pairs(rows: Tensor) -> zip[tuple[Tensor, Tensor]]:
    return zip(rows, rows[1:], strict=False)


def _divergences(p: Tensor) -> list[float]:
    first = torch.full_like(p[:1], 1 / p.shape[-1])
    return [float((a * (a.log() - b.log())).sum()) for a, b in _pairs(torch.cat((first, p)))]
