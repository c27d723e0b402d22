"""Triton kernels of the matrix products: out [R, N] = x [R, K] times weight [N, K] transposed.

One canonical order: every element is a chain of additions in ascending K, kept in float32. The
tensor core adds 16 products at a time to the chain and float32 products are one fused
multiply-add each, so neither the tile's shape nor the number of warps, nor which operand is on
the left, can change a bit. K is never split. tests/test_kernels_products_gpu.py holds it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.silu import silu_times

# mypy: disable-error-code="no-untyped-def,untyped-decorator,possibly-undefined"


@triton.jit(do_not_specialize=["R"])
def rows_product(
    x,
    weight,
    bias,
    num_rows,
    out,
    R,
    N,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    SWAP: tl.constexpr,
    PEEL: tl.constexpr,
    PRE: tl.constexpr,
    PARTS: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per tile, row tiles of one weight tile side by side (it stays in L2).

    N counts results: weight is [N, K], with SILU [2 N, K]. PEEL elements of each weight row are
    loaded, and PRE more asked into L2, before the program waits for the kernel in front of it.
    """
    WIDTH: tl.constexpr = BN // 2 if SILU else BN
    num_m = tl.cdiv(R, BM)
    tile = tl.program_id(0) // num_m
    m0 = (tl.program_id(0) % num_m) * BM
    w_rows = weight + _weight_rows(tile, N, BN, SILU) * K
    if PRE > 0:
        _prefetch(w_rows + PEEL, PRE, BN, PARTS)
    if PEEL > 0:
        w_first = tl.load(w_rows[:, None] + tl.arange(0, PEEL)[None, :])
    if PDL:
        # Before any result of another kernel is read or written, and in every program: the next
        # kernel's wait trusts that this one has seen the end of the one before.
        gdc_wait()
        # Only now may the next kernel start: programs that wait several kernels ahead hold shared
        # memory that the running ones need (measured: 1.53 ms a tick at one row instead of 1.34).
        gdc_launch_dependents()
    if HAS_ROWS:
        if m0 >= tl.load(num_rows):
            return
    m = m0 + tl.arange(0, BM)
    x_rows = x + m.to(tl.int64)[:, None] * K
    inside = (m < R)[:, None]
    acc = _zeros(BM, BN, SWAP)
    if PEEL > 0:
        x_first = tl.load(x_rows + tl.arange(0, PEEL)[None, :], mask=inside, other=0.0)
        acc = _accumulate(acc, x_first, w_first, SWAP)
    k = tl.arange(0, BK)[None, :]
    for k0 in tl.range(PEEL, K, BK, num_stages=STAGES):
        if (K - PEEL) % BK == 0:
            wv = tl.load(w_rows[:, None] + (k0 + k), eviction_policy="evict_first")
            xv = tl.load(x_rows + (k0 + k), mask=inside, other=0.0)
        else:
            wv = tl.load(w_rows[:, None] + (k0 + k), mask=k0 + k < K, other=0.0)
            xv = tl.load(x_rows + (k0 + k), mask=inside & (k0 + k < K), other=0.0)
        acc = _accumulate(acc, xv, wv, SWAP)
    if SILU:
        if SWAP:
            acc = tl.trans(acc)
        gate, up = tl.split(tl.reshape(acc, (BM, WIDTH, 2)))
        value = silu_times(_rounded(gate, out, False), _rounded(up, out, False))
    else:
        acc = _with_bias(acc, bias, tile * BN, N, BN, HAS_BIAS, SWAP)
        value = _rounded(acc, out, SWAP)
    _store(value, out, m0, tile * WIDTH, R, N, BM, WIDTH)


@triton.jit(do_not_specialize=["R"])
def many_product(
    x,
    weight,
    weight_ptr,
    bias,
    num_rows,
    out,
    R,
    N,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    SWAP: tl.constexpr,
    PRE: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    PDL: tl.constexpr,
    SPECIAL: tl.constexpr,
):
    """Persistent: PROGRAMS programs walk the tiles, GROUP row tiles by all columns at a time.

    x and weight are tensor descriptors with blocks [BM, BK] and [BN, BK]; weight_ptr is the same
    weight: PRE elements of each row of a program's first tile are asked into L2 before the wait for
    the kernel in front. With SILU the weight is described as [2, N, K], blocks [2, BN / 2, BK], so
    that gate and up of one tile are one load, one product and, behind it, two halves of a thread's
    registers (two accumulators with products of half the width: 535 TFLOP/s at 8192 rows where the
    plain product has 755).
    SPECIAL: loads in a warp of their own.
    """
    WIDTH: tl.constexpr = BN // 2 if SILU else BN
    num_n = tl.cdiv(N, WIDTH)
    if PRE > 0:
        _, first = _tile_of(tl.program_id(0), tl.cdiv(R, BM), num_n, GROUP)
        i = tl.arange(0, BN)
        row = tl.minimum(first * WIDTH + i % WIDTH, N - 1) + (i // WIDTH) * N
        _prefetch(weight_ptr + row.to(tl.int64) * K, PRE, BN, PARTS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = R
    if HAS_ROWS:
        rows = tl.minimum(R, tl.load(num_rows))
    num_m = tl.cdiv(rows, BM)
    for index in tl.range(tl.program_id(0), num_m * num_n, PROGRAMS, flatten=not SPECIAL):
        m, n = _tile_of(index, num_m, num_n, GROUP)
        m0, n0 = m * BM, n * WIDTH
        acc = _zeros(BM, BN, SWAP)
        for k0 in tl.range(0, K, BK, num_stages=STAGES, warp_specialize=SPECIAL):
            if SILU:
                wv = weight.load([0, n0, k0]).reshape(BN, BK)
            else:
                wv = weight.load([n0, k0])
            acc = _accumulate(acc, x.load([m0, k0]), wv, SWAP)
        if SILU:
            gate, up = _halves(acc, out, BM, WIDTH, SWAP)
            value = silu_times(gate, up)
        else:
            value = _rounded(_with_bias(acc, bias, n0, N, WIDTH, HAS_BIAS, SWAP), out, SWAP)
        _store(value, out, m0, n0, R, N, BM, WIDTH)


@triton.jit
def _tile_of(index, num_m, num_n, GROUP: tl.constexpr):
    """(row tile, column tile) of a number: GROUP row tiles by all columns at a time."""
    group = index // (GROUP * num_n)
    within = index % (GROUP * num_n)
    height = tl.minimum(num_m - group * GROUP, GROUP)
    return group * GROUP + within % height, within // height


@triton.jit
def _weight_rows(tile, N, BN: tl.constexpr, SILU: tl.constexpr):
    """Rows of the weight in this tile: gate and up interleaved for SILU, so that each pair ends
    in one thread; rows past the last are the last one again (their results are not stored)."""
    i = tl.arange(0, BN)
    if SILU:
        n = tl.minimum(tile * (BN // 2) + i // 2, N - 1) + (i % 2) * N
    else:
        n = tl.minimum(tile * BN + i, N - 1)
    return n.to(tl.int64)


@triton.jit
def _prefetch(rows, PRE: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr):
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
def _zeros(BM: tl.constexpr, BN: tl.constexpr, SWAP: tl.constexpr):
    if SWAP:
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
    return acc


@triton.jit
def _accumulate(acc, xv, wv, SWAP: tl.constexpr):
    # "ieee" matters for float32 alone: no TF32.
    if SWAP:
        acc = tl.dot(wv, tl.trans(xv), acc, input_precision="ieee")
    else:
        acc = tl.dot(xv, tl.trans(wv), acc, input_precision="ieee")
    return acc


@triton.jit
def _with_bias(acc, bias, n0, N, BN: tl.constexpr, HAS_BIAS: tl.constexpr, SWAP: tl.constexpr):
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
def _rounded(acc, out, SWAP: tl.constexpr):
    """acc as [BM, BN] in the dtype of `out`."""
    value = acc.to(out.dtype.element_ty)
    if SWAP:
        value = tl.trans(value)
    return value


@triton.jit
def _halves(acc, out, BM: tl.constexpr, WIDTH: tl.constexpr, SWAP: tl.constexpr):
    """The first and the second half of the tile's weight rows, [BM, WIDTH] each, rounded."""
    value = acc.to(out.dtype.element_ty)
    if SWAP:
        both = tl.permute(tl.reshape(value, (2, WIDTH, BM)), (2, 1, 0))
    else:
        both = tl.permute(tl.reshape(value, (BM, 2, WIDTH)), (0, 2, 1))
    return tl.split(both)


@triton.jit
def _store(value, out, m0, n0, R, N, BM: tl.constexpr, BN: tl.constexpr):
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    place = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(place, value, mask=(m < R)[:, None] & (n < N)[None, :])
