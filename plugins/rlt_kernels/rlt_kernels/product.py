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

from rlt_kernels.product_parts import (
    accumulate,
    halves,
    prefetch,
    rounded,
    store,
    tile_of,
    weight_rows,
    with_bias,
    zeros,
)
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
    w_rows = weight + weight_rows(tile, N, BN, SILU) * K
    if PRE > 0:
        prefetch(w_rows + PEEL, PRE, BN, PARTS)
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
    acc = zeros(BM, BN, SWAP)
    if PEEL > 0:
        x_first = tl.load(x_rows + tl.arange(0, PEEL)[None, :], mask=inside, other=0.0)
        acc = accumulate(acc, x_first, w_first, SWAP)
    k = tl.arange(0, BK)[None, :]
    for k0 in tl.range(PEEL, K, BK, num_stages=STAGES):
        if (K - PEEL) % BK == 0:
            wv = tl.load(w_rows[:, None] + (k0 + k), eviction_policy="evict_first")
            xv = tl.load(x_rows + (k0 + k), mask=inside, other=0.0)
        else:
            wv = tl.load(w_rows[:, None] + (k0 + k), mask=k0 + k < K, other=0.0)
            xv = tl.load(x_rows + (k0 + k), mask=inside & (k0 + k < K), other=0.0)
        acc = accumulate(acc, xv, wv, SWAP)
    if SILU:
        if SWAP:
            acc = tl.trans(acc)
        gate, up = tl.split(tl.reshape(acc, (BM, WIDTH, 2)))
        value = silu_times(rounded(gate, out, False), rounded(up, out, False))
    else:
        acc = with_bias(acc, bias, tile * BN, N, BN, HAS_BIAS, SWAP)
        value = rounded(acc, out, SWAP)
    store(value, out, m0, tile * WIDTH, R, N, BM, WIDTH)


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
        _, first = tile_of(tl.program_id(0), tl.cdiv(R, BM), num_n, GROUP)
        i = tl.arange(0, BN)
        row = tl.minimum(first * WIDTH + i % WIDTH, N - 1) + (i // WIDTH) * N
        prefetch(weight_ptr + row.to(tl.int64) * K, PRE, BN, PARTS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = R
    if HAS_ROWS:
        rows = tl.minimum(R, tl.load(num_rows))
    num_m = tl.cdiv(rows, BM)
    for index in tl.range(tl.program_id(0), num_m * num_n, PROGRAMS, flatten=not SPECIAL):
        m, n = tile_of(index, num_m, num_n, GROUP)
        m0, n0 = m * BM, n * WIDTH
        acc = zeros(BM, BN, SWAP)
        for k0 in tl.range(0, K, BK, num_stages=STAGES, warp_specialize=SPECIAL):
            if SILU:
                wv = weight.load([0, n0, k0]).reshape(BN, BK)
            else:
                wv = weight.load([n0, k0])
            acc = accumulate(acc, x.load([m0, k0]), wv, SWAP)
        if SILU:
            gate, up = halves(acc, out, BM, WIDTH, SWAP)
            value = silu_times(gate, up)
        else:
            value = rounded(with_bias(acc, bias, n0, N, WIDTH, HAS_BIAS, SWAP), out, SWAP)
        store(value, out, m0, n0, R, N, BM, WIDTH)
