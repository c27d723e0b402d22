"""Tokens from logits, for rows without penalties, bias and filters: rlt_core.runtime.sampling to
the bit. Sums and orders are over integers, so it does not matter how a row is cut into blocks."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from rlt_kernels.philox import philox

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_FREE = ("V", "NB")


@triton.jit
def exponential(x, LIB: tl.constexpr):
    """exp as torch's on a GPU; the interpreter has no such library."""
    if LIB:
        return libdevice.exp(x)
    else:
        return tl.exp(x)


@triton.jit
def logarithm(x, LIB: tl.constexpr):
    """log as torch's on a GPU."""
    if LIB:
        return libdevice.log(x)
    else:
        return tl.log(x)


@triton.jit
def order_key(value, token):
    """int64: larger value first, then lower id; 0.0 and -0.0 are equal."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (rank.to(tl.int64) << 32) + (0xFFFFFFFF - token.to(tl.int64))


@triton.jit
def row_peak(part_peak, row, NB, BLOCKS: tl.constexpr):
    """(the row's largest logit, whether the row is bad); of a bad row the peak counts as 0."""
    block = tl.arange(0, BLOCKS)
    peak = tl.max(tl.load(part_peak + row * NB + block, mask=block < NB, other=-float("inf")), 0)
    bad = (peak == float("inf")) | (peak == -float("inf"))
    return tl.where(bad, 0.0, peak), bad


@triton.jit
def gumbel(token, position, seed, LIB: tl.constexpr):
    """Standard Gumbel noise keyed (seed, position, token): word token % 4 of the counter
    (position, 0, token // 4, 0) of Philox-4x32-10 (Salmon et al., SC 2011)."""
    c2 = (token // 4).to(tl.uint32)
    c0 = tl.zeros_like(c2) + (position & 0xFFFFFFFF).to(tl.uint32)
    c1 = tl.zeros_like(c2)
    c0, c1, c2, c3 = philox(seed, c0, c1, c2, c1)
    lane = token % 4
    bits = tl.where(lane == 0, c0, tl.where(lane == 1, c1, tl.where(lane == 2, c2, c3)))
    # each step is exact
    u = ((bits >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -logarithm(-logarithm(u, LIB), LIB)


@triton.jit(do_not_specialize=_FREE)
def peak_blocks(logits, live, part_peak, V, NB, BLOCK: tl.constexpr):
    """The largest logit of a block; inf where it holds NaN. Rows that are not live are left out,
    here and below."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(live + row) == 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * V + token, mask=token < V, other=-float("inf"))
    x = tl.where(x != x, float("inf"), x)
    tl.store(part_peak + row * NB + tl.program_id(1), tl.max(x, 0))


@triton.jit(do_not_specialize=_FREE)
def score_blocks(
    logits,
    live,
    slots,
    position,
    seed,
    temperature,
    part_peak,
    part_total,
    part_key,
    V,
    NB,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    LIB: tl.constexpr,
):
    """A block's sum of weights in units of 2**-44 of the largest, and its best token."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(live + row) == 0:
        return
    peak, bad = row_peak(part_peak, row, NB, BLOCKS)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = token < V
    x = tl.load(logits + row * V + token, mask=there, other=-float("inf"))
    x = tl.where(bad, 0.0, x)
    shifted = x - peak
    weight = (exponential(shifted, LIB) * (2.0**44)).to(tl.int64)
    at = row * NB + tl.program_id(1)
    tl.store(part_total + at, tl.sum(tl.where(there, weight, 0), 0))
    slot = tl.load(slots + row)
    heat = tl.load(temperature + slot)
    if heat > 0:
        noise = gumbel(token, tl.load(position + row) + 1, tl.load(seed + slot), LIB)
        x = tl.div_rn(shifted, tl.zeros_like(shifted) + heat) + noise
    key = tl.where(there, order_key(x, token), -0x7FFFFFFFFFFFFFFF)
    tl.store(part_key + at, tl.max(key, 0))


@triton.jit(do_not_specialize=_FREE)
def rank_blocks(
    logits,
    live,
    part_peak,
    part_key,
    part_rank,
    V,
    NB,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """How many of a block's tokens stand at or before the one drawn."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(live + row) == 0:
        return
    _, bad = row_peak(part_peak, row, NB, BLOCKS)
    block = tl.arange(0, BLOCKS)
    keys = tl.load(part_key + row * NB + block, mask=block < NB, other=-0x7FFFFFFFFFFFFFFF)
    drawn = 0xFFFFFFFF - (tl.max(keys, 0) & 0xFFFFFFFF)
    own = order_key(tl.where(bad, 0.0, tl.load(logits + row * V + drawn)), drawn)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = token < V
    x = tl.where(bad, 0.0, tl.load(logits + row * V + token, mask=there, other=0.0))
    before = there & (order_key(x, token) >= own)
    tl.store(part_rank + row * NB + tl.program_id(1), tl.sum(before.to(tl.int64), 0))


@triton.jit(do_not_specialize=_FREE)
def drawn_rows(
    logits,
    live,
    part_peak,
    part_total,
    part_key,
    part_rank,
    out_token,
    out_logprob,
    out_rank,
    out_bad,
    V,
    NB,
    BLOCKS: tl.constexpr,
    LIB: tl.constexpr,
):
    """Each row's token, its raw logprob and rank."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(live + row) == 0:
        return
    peak, bad = row_peak(part_peak, row, NB, BLOCKS)
    block = tl.arange(0, BLOCKS)
    there = block < NB
    keys = tl.load(part_key + row * NB + block, mask=there, other=-0x7FFFFFFFFFFFFFFF)
    drawn = 0xFFFFFFFF - (tl.max(keys, 0) & 0xFFFFFFFF)
    total = tl.sum(tl.load(part_total + row * NB + block, mask=there, other=0), 0)
    rank = tl.sum(tl.load(part_rank + row * NB + block, mask=there, other=0), 0)
    x = tl.where(bad, 0.0, tl.load(logits + row * V + drawn))
    log_total = logarithm(total.to(tl.float64) / (2.0**44), LIB)
    tl.store(out_token + row, drawn)
    tl.store(out_logprob + row, ((x - peak).to(tl.float64) - log_total).to(tl.float32))
    tl.store(out_rank + row, rank)
    tl.store(out_bad + row, bad.to(tl.int8))
