"""What kernels of rows have in common: which rows a program has, and where their values lie."""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def,untyped-decorator,possibly-undefined"


@triton.jit
def own_rows(ROWS: tl.constexpr):
    """int64 row numbers of this program: [ROWS], or a scalar where it has one."""
    if ROWS == 1:
        row = tl.program_id(0).to(tl.int64)
    else:
        row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    return row


@triton.jit
def inside_rows(row, R, column, W: tl.constexpr, ROWS: tl.constexpr):
    """bool [ROWS, columns]: what is there."""
    inside = (column < W)[None, :]
    if ROWS > 1:
        inside = (row < R)[:, None] & inside
    return inside


@triton.jit
def places(start, column, ALIGN: tl.constexpr, ROWS: tl.constexpr):
    """Pointers [ROWS, columns] from the rows' starts, which are multiples of ALIGN bytes; the
    columns are consecutive, the first one a multiple of 16.

    The hint stands here: pointer arguments are not specialised on alignment, so that one
    compiled kernel serves every call, and loads are as wide as the width allows all the same.
    """
    if ROWS == 1:
        at = tl.multiple_of(start + column, ALIGN)[None, :]
    else:
        at = tl.multiple_of(start[:, None], (ALIGN, ALIGN)) + column[None, :]
    return at
