"""What a request changes in a row of logits before a token is drawn: bias, penalties, filters.

Every function is a fixed list of tensor operations: no host read, no shape that depends on data.
Sums and orders are taken over integers, which no reduction tree, thread count or number of rows
can change; everything else is elementwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Weights are integers in units of 2**-44 of the row's largest, so that a row of at most
# MAX_VOCAB of them sums without overflow.
WEIGHT_UNIT = 2.0**44
MAX_VOCAB = 1 << 18
_LOW = 0xFFFFFFFF


def order_keys(values: Tensor) -> Tensor:
    """int64 [rows, vocab], all different in a row: larger value first, then lower id.

    values float32 [rows, vocab] without NaN; 0.0 and -0.0 are equal.
    """
    bits = (values + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(values.shape[-1], device=values.device)
    return (rank.to(torch.int64) << 32) + (_LOW - ids)


def key_ids(keys: Tensor) -> Tensor:
    """Token ids int64 of order keys, same shape."""
    return _LOW - (keys & _LOW)


def add_bias(logits: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """logits plus each row's biases: ids int64 [rows, n] (-1 unused, no id twice), values float32.

    Unused entries add 0 to token 0, which changes nothing in whatever order it happens.
    """
    used = ids >= 0
    return logits.scatter_add(1, ids.clamp(min=0), torch.where(used, values, 0.0))


def apply_penalties(
    logits: Tensor,
    counts: Tensor,
    in_prompt: Tensor,
    *,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Repetition first, then presence and frequency; penalties float32 [rows].

    counts int32 [rows, vocab] of generated tokens; in_prompt bool [rows, vocab]. Repetition
    (divide what is positive, multiply what is not) meets prompt and generated tokens, the other
    two only generated ones.
    """
    made = counts > 0
    factor = torch.where(made | in_prompt, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    return logits - frequency[:, None] * counts - presence[:, None] * made


def weights_of(shifted: Tensor) -> Tensor:
    """exp(shifted) int64 in WEIGHT_UNIT; shifted float32 [rows, vocab], at most 0."""
    return (shifted.exp() * WEIGHT_UNIT).to(torch.int64)


def keep_min_p(scaled: Tensor, min_p: Tensor) -> Tensor:
    """scaled (largest 0), -inf where the probability is below min_p times the largest."""
    return torch.where(scaled.exp() >= min_p[:, None], scaled, -torch.inf)


def keep_top(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """scaled (largest 0), -inf outside the first top_k and, of these, the first top_p of weight.

    top_k int [rows], 0 or above vocab is off; top_p float32 [rows], 1 is off. The token that
    reaches top_p is kept, so at least one is. Ties at the border: the lower id stays.
    """
    keys = order_keys(scaled)
    ordered = keys.sort(dim=-1, descending=True).values
    num_kept = _first_k(scaled, top_k)
    if top_p is not None:
        num_kept = _first_p(weights_of(scaled).gather(1, key_ids(ordered)), num_kept, top_p)
    last = ordered.gather(1, num_kept - 1)
    return torch.where(keys >= last, scaled, -torch.inf)


def _first_k(scaled: Tensor, top_k: Tensor | None) -> Tensor:
    """How many tokens top_k keeps: int64 [rows, 1]."""
    rows, vocab = scaled.shape
    if top_k is None:
        return torch.full((rows, 1), vocab, dtype=torch.int64, device=scaled.device)
    k = top_k.to(torch.int64)[:, None]
    return torch.where(k <= 0, vocab, k).clamp(max=vocab)


def _first_p(ordered: Tensor, num_kept: Tensor, top_p: Tensor) -> Tensor:
    """How many of the first num_kept [rows, 1] remain; ordered: weights, largest first."""
    inside = torch.arange(ordered.shape[-1], device=ordered.device) < num_kept
    weights = torch.where(inside, ordered, 0)
    upto = weights.cumsum(dim=-1)
    limit = (top_p.double()[:, None] * upto[:, -1:].double()).ceil().to(torch.int64)
    within = ((upto - weights < limit) & inside).sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(top_p[:, None] >= 1.0, num_kept, within)
