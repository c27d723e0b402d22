"""From logits to tokens, for all rows of a tick at once: one device program in two variants.

Order of the full variant: logit bias, repetition penalty, presence and frequency penalty, mask,
temperature, min-p, top-k, top-p, then Gumbel-max with noise keyed (seed, position, token id).
Each filter works on what the ones before left. Temperature 0 takes the largest logit after the
mask and draws nothing. Ties go to the lowest id everywhere. A row's result, to the bit,
depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rlt_core.runtime.philox import gumbel_noise
from rlt_core.runtime.sampling_filters import (
    MAX_VOCAB,
    WEIGHT_UNIT,
    add_bias,
    apply_penalties,
    keep_min_p,
    keep_top,
    key_ids,
    order_keys,
    weights_of,
)

MAX_TOP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRows:
    """What `sample_full` needs, one entry a row (R rows, V vocabulary entries).

    logits float32 [R, V]; position int64 [R] of the token being drawn; seed int64 [R];
    temperature, top_p, min_p and the penalties float32 [R]; top_k int32 [R], 0 is off.
    token_counts int32 [R, V]: generated tokens; in_prompt bool [R, V]. bias_ids int64 [R, N]
    (-1 unused, no id twice in a row), bias_values float32 [R, N]. allowed bool [R, V]: the mask.
    None: off for every row, and the work is saved; a row that has the neutral value (top_p 1,
    top_k 0, min_p 0, repetition 1, presence and frequency 0, everything allowed) gets the same bits
    either way.
    The five fields of the penalties come together, and so do the two of the bias.
    """

    logits: Tensor
    position: Tensor
    seed: Tensor
    temperature: Tensor
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    top_k: Tensor | None = None
    repetition_penalty: Tensor | None = None
    presence_penalty: Tensor | None = None
    frequency_penalty: Tensor | None = None
    token_counts: Tensor | None = None
    in_prompt: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    allowed: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a row got. logprobs are raw: of the logits before bias, penalties, mask and filters.

    token int64 [R]; logprob float32 [R]; rank int64 [R], 1 for the likeliest;
    top_ids int64 [R, k] and top_logprobs float32 [R, k], likeliest first.
    bad bool [R]: the logits held NaN or +inf, or nothing but -inf, or overflowed by bias and
    penalties, or the mask left nothing. A bad row counts as one of zeros: its numbers are finite,
    its token is an id, and neither means anything.
    """

    token: Tensor
    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    bad: Tensor


def sample_plain(logits: Tensor, num_top: int = 0) -> Sampled:
    """The likeliest token of each row; logits float32 [R, V], num_top (k) 0 to 20, static."""
    raw = _Raw.of(logits)
    return raw.read(key_ids(raw.keys.amax(dim=-1)), num_top)


def sample_full(rows: SampleRows, num_top: int = 0) -> Sampled:
    """A token of each row by its own parameters; num_top (k) 0 to 20, static."""
    raw = _Raw.of(rows.logits)
    changed = changed_logits(raw.logits, rows)
    if rows.allowed is not None:
        changed = torch.where(rows.allowed, changed, -torch.inf)
    logits, peak, overflow = finite_rows(changed)
    scores = torch.where(rows.temperature[:, None] > 0, _noisy(logits, peak, rows), logits)
    return raw.read(key_ids(order_keys(scores).amax(dim=-1)), num_top, overflow)


def score_tokens(logits: Tensor, token: Tensor, num_top: int = 0) -> Sampled:
    """Raw logprob and rank of given tokens: logits float32 [R, V], token int64 [R]."""
    return _Raw.of(logits).read(token, num_top)


def joined(parts: Sequence[Sampled]) -> Sampled:
    """Rows of several calls as of one."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Sampled)]
    return Sampled(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def finite_rows(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(logits with bad rows set to zeros, the largest of each row [R, 1], bad bool [R])."""
    peak = logits.amax(dim=-1, keepdim=True)  # NaN or +inf when the row holds one
    bad = ~torch.isfinite(peak)
    return torch.where(bad, 0.0, logits), torch.where(bad, 0.0, peak), bad[:, 0]


def changed_logits(logits: Tensor, rows: SampleRows) -> Tensor:
    """logits [R, V] after the rows' bias and penalties."""
    if rows.bias_ids is not None and rows.bias_values is not None:
        logits = add_bias(logits, rows.bias_ids, rows.bias_values)
    if (
        rows.token_counts is None
        or rows.in_prompt is None
        or rows.repetition_penalty is None
        or rows.presence_penalty is None
        or rows.frequency_penalty is None
    ):
        return logits
    return apply_penalties(
        logits,
        rows.token_counts,
        rows.in_prompt,
        repetition=rows.repetition_penalty,
        presence=rows.presence_penalty,
        frequency=rows.frequency_penalty,
    )


def _noisy(logits: Tensor, peak: Tensor, rows: SampleRows) -> Tensor:
    """Filtered log-weights plus noise: the largest is a draw by the filtered probabilities."""
    heat = rows.temperature[:, None]
    # Shifted before the division: a tiny temperature gives 0 and -inf, never inf - inf.
    scaled = (logits - peak) / torch.where(heat > 0, heat, 1.0)
    if rows.min_p is not None:
        scaled = keep_min_p(scaled, rows.min_p)
    if rows.top_k is not None or rows.top_p is not None:
        scaled = keep_top(scaled, rows.top_k, rows.top_p)
    return scaled + gumbel_noise(rows.seed, rows.position, scaled.shape[-1])


@dataclass(frozen=True, slots=True)
class _Raw:
    """Unchanged logits with their order and the logarithm of their softmax's denominator."""

    logits: Tensor
    peak: Tensor
    keys: Tensor
    log_total: Tensor
    bad: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> _Raw:
        if logits.shape[-1] > MAX_VOCAB:
            raise ValueError(f"{logits.shape[-1]} logits a row; sampling takes up to {MAX_VOCAB}")
        logits, peak, bad = finite_rows(logits)
        total = weights_of(logits - peak).sum(dim=-1, keepdim=True)
        log_total = (total.double() / WEIGHT_UNIT).log()
        return cls(logits, peak, order_keys(logits), log_total, bad)

    def read(self, token: Tensor, num_top: int, overflow: Tensor | None = None) -> Sampled:
        at, num_top = token[:, None], _check_top(num_top, self.keys)
        top_ids = key_ids(self.keys.topk(num_top, dim=-1).values) if num_top else at[:, :0]
        return Sampled(
            token=token,
            logprob=self._logprob(at)[:, 0],
            rank=(self.keys >= self.keys.gather(1, at)).sum(dim=-1),
            top_ids=top_ids,
            # Not of the logits: a view, even an empty one, would keep all of them.
            top_logprobs=self._logprob(top_ids) if num_top else self.peak[:, :0],
            bad=self.bad if overflow is None else self.bad | overflow,
        )

    def _logprob(self, ids: Tensor) -> Tensor:
        shifted = self.logits.gather(1, ids) - self.peak
        return (shifted.double() - self.log_total).to(torch.float32)


def _check_top(num_top: int, keys: Tensor) -> int:
    if not 0 <= num_top <= MAX_TOP:
        raise ValueError(f"num_top is {num_top}; it must be 0 to {MAX_TOP}")
    return min(num_top, keys.shape[-1])
