"""What product.py's kernels are made of: places of a tile, its sums, its results."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator,possibly-undefined"


@triton.jit
def tile_of(index, num_m, num_n, GROUP: tl.constexpr):
    """(row tile, column tile) of a number: GROUP row tiles by all columns at a time."""
    group = index // (GROUP * num_n)
    within = index % (GROUP * num_n)
    height = tl.minimum(num_m - group * GROUP, GROUP)
    return group * GROUP + within % height, within // height


@triton.jit
def weight_rows(tile, N, BN: tl.constexpr, SILU: tl.constexpr):
    """Rows of the weight in this tile: gate and up interleaved for SILU, so that each pair ends
    in one thread; rows past the last are the last one again (their results are not stored)."""
    i = tl.arange(0, BN)
    if SILU:
        n = tl.minimum(tile * (BN // 2) + i // 2, N - 1) + (i % 2) * N
    else:
        n = tl.minimum(tile * BN + i, N - 1)
    return n.to(tl.int64)


@triton.jit
def prefetch(rows, PRE: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr):
    """Ask the L2 cache for PRE elements from each of the addresses `rows`, in PARTS requests."""
    part = rows[:, None] + tl.arange(0, PARTS)[None, :] * (PRE // PARTS)
    bits: tl.constexpr = rows.dtype.element_ty.primitive_bitwidth
    size = tl.full((BN, PARTS), (PRE // PARTS) * (bits // 8), tl.int32)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // $0",
        "=r,l,r",
        [part.to(tl.int64), size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def zeros(BM: tl.constexpr, BN: tl.constexpr, SWAP: tl.constexpr):
    """The start of every sum: float32 [BM, BN], or [BN, BM] with SWAP."""
    if SWAP:
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
    return acc


@triton.jit
def accumulate(acc, xv, wv, SWAP: tl.constexpr):
    """acc with the next products added: xv [BM, BK] rows, wv [BN, BK] of the weight."""
    # "ieee" matters for float32 alone: no TF32.
    if SWAP:
        acc = tl.dot(wv, tl.trans(xv), acc, input_precision="ieee")
    else:
        acc = tl.dot(xv, tl.trans(wv), acc, input_precision="ieee")
    return acc


@triton.jit
def with_bias(acc, bias, n0, N, BN: tl.constexpr, HAS_BIAS: tl.constexpr, SWAP: tl.constexpr):
    """acc with the bias of the tile's columns, from n0 on, added last."""
    if HAS_BIAS:
        n = n0 + tl.arange(0, BN)
        value = tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        # By name: a plain addition to a product of one step becomes the start of its chain.
        one = tl.full(acc.shape, 1.0, tl.float32)
        if SWAP:
            acc = tl.fma(acc, one, tl.broadcast_to(value[:, None], acc.shape))
        else:
            acc = tl.fma(acc, one, tl.broadcast_to(value[None, :], acc.shape))
    return acc


@triton.jit
def rounded(acc, out, SWAP: tl.constexpr):
    """acc as [BM, BN] in the dtype of `out`."""
    value = acc.to(out.dtype.element_ty)
    if SWAP:
        value = tl.trans(value)
    return value


@triton.jit
def halves(acc, out, BM: tl.constexpr, WIDTH: tl.constexpr, SWAP: tl.constexpr):
    """The first and the second half of the tile's weight rows, [BM, WIDTH] each, rounded."""
    value = acc.to(out.dtype.element_ty)
    if SWAP:
        both = tl.permute(tl.reshape(value, (2, WIDTH, BM)), (2, 1, 0))
    else:
        both = tl.permute(tl.reshape(value, (BM, 2, WIDTH)), (0, 2, 1))
    return tl.split(both)


@triton.jit
def store(value, out, m0, n0, R, N, BM: tl.constexpr, BN: tl.constexpr):
    """Write a tile [BM, BN] of the results [R, N], as far as it lies in them."""
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    place = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(place, value, mask=(m < R)[:, None] & (n < N)[None, :])
