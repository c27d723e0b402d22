"""Rotary embedding inside a kernel, with the rounding points of the models' own code."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit
def turned(
    x_ptr,  # the first size of each vector
    mask,  # which vectors and sizes are there
    d,  # sizes, along the last dimension of x_ptr
    cos_ptr,  # this position's row of cosines
    sin_ptr,
    ROPE: tl.constexpr,  # sizes that turn; 0: none
    INTERLEAVED: tl.constexpr,
):
    """Vectors at x_ptr + d, turned: halves (i, i + dim / 2) with each product rounded to the
    dtype, or pairs (2i, 2i + 1) in float32 with one rounding."""
    x = tl.load(x_ptr + d, mask=mask, other=0.0)
    if ROPE == 0:
        return x
    turns = d < ROPE
    if INTERLEAVED:
        other = tl.where(turns, d ^ 1, d)
        angle = d // 2
        first = d % 2 == 0
    else:
        other = tl.where(turns, (d + ROPE // 2) % ROPE, d)
        angle = d % (ROPE // 2)
        first = d < ROPE // 2
    partner = tl.load(x_ptr + other, mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(tl.float32)
    partner = tl.where(first, -partner, partner)
    if INTERLEAVED:
        # fused by name, or another kernel's compiler might not fuse it
        out = tl.fma(x.to(tl.float32), cos, partner * sin).to(x.dtype)
    else:
        one = (x.to(tl.float32) * cos).to(x.dtype).to(tl.float32)
        two = (partner * sin).to(x.dtype).to(tl.float32)
        out = (one + two).to(x.dtype)
    return tl.where(turns, out, x)
