"""The chunk rule: 128 keys from absolute position 0, merged ascending, alike in every kernel.

Scores, weighted values and the sum of the weights are tensor-core products, the sum as a product
with ones, so that its order is the product's and not that of a reduction over threads. Merging is
written with fused multiply-adds, which leave the compiler no choice. A chunk without a visible key
leaves a row as it was, and every row starts from nothing, so -0.0 comes out alike everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

CHUNK = tl.constexpr(128)
# Positions that the copy engine brings at once, for a prompt's tile and for a decode row.
BLOCK = tl.constexpr(64)
PIECE = tl.constexpr(32)


@triton.jit
def key_offsets(
    pages_ptr,  # the row's page table
    n,  # positions [CHUNK]
    there,  # [CHUNK]: those that have a page
    page_stride,
    position_stride,
    PAGE: tl.constexpr,
    WHOLE: tl.constexpr,  # positions that a page's stride is, where it is a whole number; or 0
):
    """Offsets [CHUNK] of the positions' vectors from the first page, side and head."""
    page = tl.load(pages_ptr + n // PAGE, mask=there, other=0)
    if WHOLE > 0:
        return (page * WHOLE + n % PAGE).to(tl.int64) * position_stride
    else:
        return page.to(tl.int64) * page_stride + (n % PAGE) * position_stride


@triton.jit
def attend_chunk(
    q,  # [M, D], scaled nowhere
    k,  # [CHUNK, D]
    v,  # [CHUNK, D]
    visible,  # [M, CHUNK]
    scale,  # 1 / sqrt(head size) / ln 2
    DOT: tl.constexpr,  # input precision of the products
):
    """(highest score, sum of weights, weighted values) of one chunk; -inf where none is seen."""
    scores = tl.where(visible, tl.dot(q, k.T, input_precision=DOT) * scale, float("-inf"))
    highest = tl.max(scores, 1)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None]).to(q.dtype)
    mixed = tl.dot(weights, v, input_precision=DOT)
    ones = tl.full((CHUNK, 16), 1.0, q.dtype)
    # sixteen equal columns: their maximum is any of them
    total = tl.max(tl.dot(weights, ones, input_precision=DOT), 1)
    return highest, total, mixed


@triton.jit
def merge(highest, total, mixed, new_highest, new_total, new_mixed):
    """A chunk merged into those before it; all [M], and [M, D] for the weighted values."""
    there = new_highest > float("-inf")
    top = tl.where(there, tl.maximum(highest, new_highest), highest)
    old = tl.where(highest == float("-inf"), 0.0, tl.exp2(highest - top))
    new = tl.where(there, tl.exp2(new_highest - top), 0.0)
    wide = tl.broadcast_to(new[:, None], mixed.shape)
    merged_total = tl.fma(new_total, new, total * old)
    merged_mixed = tl.fma(new_mixed, wide, mixed * old[:, None])
    total = tl.where(there, merged_total, total)
    mixed = tl.where(there[:, None], merged_mixed, mixed)
    return top, total, mixed


@triton.jit
def weigh_across(
    q,  # [D, M]: queries across, so that the keys fill the tall side of the products
    k,  # [CHUNK, D]
    seen,  # [CHUNK]
    scale,
    DOT: tl.constexpr,
):
    """(highest score [M], weights [CHUNK, M]) of few queries that see the same keys."""
    scores = tl.dot(k, q, input_precision=DOT) * scale
    scores = tl.where(seen[:, None], scores, float("-inf"))
    highest = tl.max(scores, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, tl.exp2(scores - base[None, :]).to(q.dtype)


@triton.jit
def mix_across(weights, v, DOT: tl.constexpr):
    """(sum of the weights [M], weighted values [D, M])."""
    mixed = tl.dot(v.T, weights, input_precision=DOT)
    # 16 rows, not 64: as a wgmma with the ones in registers Triton 3.6 gives the other operand a
    # wrong address (seen with 4 warps on sm_90).
    ones = tl.full((16, CHUNK), 1.0, weights.dtype)
    return tl.max(tl.dot(ones, weights, input_precision=DOT), 0), mixed


@triton.jit
def merge_across(highest, total, mixed, new_highest, new_total, new_mixed):
    """merge for weighted values [D, M]."""
    there = new_highest > float("-inf")
    top = tl.where(there, tl.maximum(highest, new_highest), highest)
    old = tl.where(highest == float("-inf"), 0.0, tl.exp2(highest - top))
    new = tl.where(there, tl.exp2(new_highest - top), 0.0)
    wide = tl.broadcast_to(new[None, :], mixed.shape)
    merged_total = tl.fma(new_total, new, total * old)
    merged_mixed = tl.fma(new_mixed, wide, mixed * old[None, :])
    total = tl.where(there, merged_total, total)
    mixed = tl.where(there[None, :], merged_mixed, mixed)
    return top, total, mixed


@triton.jit
def finished_across(total, mixed):
    """finished for [D, M]."""
    safe = tl.where(total > 0, total, 1.0)
    return tl.where((total > 0)[None, :], mixed / safe[None, :], 0.0)


@triton.jit
def finished(total, mixed):
    """[M, D] float32: weighted values over the sum of the weights; 0 where nothing was seen."""
    safe = tl.where(total > 0, total, 1.0)
    return tl.where((total > 0)[:, None], mixed / safe[:, None], 0.0)
