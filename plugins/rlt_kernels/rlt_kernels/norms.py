"""RMS norms of rows, alone or with the addition before or after them: one kernel, four operators.

A row's squares are added in one tree that the width alone decides: one compiled kernel serves
every row count (launch.py). Rounding points are those of rlt_core.runtime.ops_torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.launch import RowLaunch, RowShape, aligned, can_overlap, check_dtype, misfit
from rlt_kernels.rows import inside_rows, own_rows, places

# mypy: disable-error-code="no-untyped-def,untyped-decorator,possibly-undefined"

_POINTERS = ("x", "residual", "w_post", "w_next", "out", "total")
_NUMBERS = ("R", "x_stride", "head_stride", "residual_stride")


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_POINTERS)
def norm_rows(
    x,
    residual,  # [R, W]; read with ADD or POST
    w_post,  # [W]; read with POST
    w_next,  # [W]
    out,  # [R, W], contiguous
    total,  # [R, W], contiguous; written with KEEP
    R,
    x_stride,  # row r is at x_stride * (r // HEADS) + head_stride * (r % HEADS)
    head_stride,
    residual_stride,
    eps,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    HEADS: tl.constexpr,
    ADD: tl.constexpr,
    POST: tl.constexpr,
    KEEP: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS rows a program: out = norm(h) * w_next, where h is x, x + residual (ADD) or
    residual + norm(x) * w_post (POST)."""
    row = own_rows(ROWS)
    column = tl.arange(0, BLOCK)
    inside = inside_rows(row, R, column, W, ROWS)
    # Weights are no kernel's result, so they are read before the wait.
    shared = (column < W)[None, :]
    next_weight = tl.load(places(w_next, column, ALIGN, 1), mask=shared, other=0.0)
    if POST:
        post_weight = tl.load(places(w_post, column, ALIGN, 1), mask=shared, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x_row = x + (row // HEADS) * x_stride + (row % HEADS) * head_stride
    h = tl.load(places(x_row, column, ALIGN, ROWS), mask=inside, other=0.0)
    if ADD or POST:
        residual_row = residual + row * residual_stride
        before = tl.load(places(residual_row, column, ALIGN, ROWS), mask=inside, other=0.0)
    if ADD:
        h = _added(h, before)
    if POST:
        h = _added(before, _normed(h, post_weight, W, eps))
    if KEEP:
        tl.store(places(total + row * W, column, ALIGN, ROWS), h, mask=inside)
    normed = _normed(h, next_weight, W, eps)
    tl.store(places(out + row * W, column, ALIGN, ROWS), normed, mask=inside)


@triton.jit
def _added(one, other):
    return (one.to(tl.float32) + other.to(tl.float32)).to(one.dtype)


@triton.jit
def _normed(h, weight, W: tl.constexpr, eps):
    """h / sqrt(mean(h^2) + eps) in float32, cast back, times the weight."""
    wide = h.to(tl.float32)
    mean = tl.math.div_rn(tl.sum(wide * wide, 1), W * 1.0)
    scale = tl.rsqrt(mean + eps)
    inner = (wide * scale[:, None]).to(h.dtype)
    return (inner.to(tl.float32) * weight.to(tl.float32)).to(h.dtype)


_launches: dict[tuple[object, ...], tuple[RowLaunch, RowShape]] = {}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., W] / sqrt(mean(x^2) + eps) in float32, cast back, times weight [W]: [..., W].

    Rows may be apart (any strides but the last). Raises ValueError for what does not fit.
    """
    rows = x if x.dim() in (2, 3) else x.reshape(-1, x.shape[-1])
    out, _ = _run("rms_norm", rows, None, None, weight, eps)
    return out if rows is x else out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), both [R, W]."""
    return _run("add_rms_norm", x, residual, None, weight, eps)


def norm_add_norm(
    sub: Tensor, residual: Tensor, w_post: Tensor, w_next: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """h = residual + rms_norm(sub, w_post); (rms_norm(h, w_next), h), both [R, W]."""
    return _run("norm_add_norm", sub, residual, w_post, w_next, eps)


def add_norm(sub: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(sub + residual, weight) [R, W]."""
    return _run("add_norm", sub, residual, None, weight, eps)[0]


def _run(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    w_post: Tensor | None,
    w_next: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """(out, total); total is `out` where the operator keeps none."""
    _check(op, x, residual, w_post, w_next)
    heads = x.shape[1] if x.dim() == 3 else 1
    width = x.shape[-1]
    key = (op, width, heads, x.dtype, x.device)
    found = _launches.get(key)
    if found is None:
        found = _launches[key] = _make_launch(op, width, heads, x)
    launch, shape = found
    x = aligned(x, shape.align)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if op in ("add_rms_norm", "norm_add_norm") else out
    rows = x.shape[0] * heads
    if rows == 0:
        return out, total
    head_stride = x.stride(1) if heads > 1 else 0
    other = x if residual is None else aligned(residual, shape.align)
    post = w_next if w_post is None else aligned(w_post, shape.align)
    following = aligned(w_next, shape.align)
    numbers = (rows, x.stride(0), head_stride, other.stride(0), eps)
    grid = (-(-rows // shape.rows), 1, 1)
    launch(grid, x, other, post, following, out, total, *numbers)
    return out, total


def _make_launch(op: str, width: int, heads: int, x: Tensor) -> tuple[RowLaunch, RowShape]:
    shape = RowShape(width, x.dtype)
    post = op == "norm_add_norm"
    add = op in ("add_norm", "add_rms_norm")
    keep = op in ("add_rms_norm", "norm_add_norm")
    constants = (width, shape.block, shape.rows, shape.align, heads, add, post, keep)
    pdl = can_overlap(x.device)
    return RowLaunch(norm_rows, constants, warps=shape.warps, pdl=pdl), shape


def _check(
    op: str, x: Tensor, residual: Tensor | None, w_post: Tensor | None, w_next: Tensor
) -> None:
    for name, weight in (("the weight", w_next), ("w_post", w_post)):
        if weight is not None:
            if weight.shape != x.shape[-1:]:
                raise misfit(f"{op}: {name}", weight, "[W]", "rows", x)
            check_dtype(op, x, name, weight)
    if residual is not None:
        if residual.shape != x.shape or x.dim() != 2:
            raise misfit(f"{op}: residual", residual, "[R, W] twice", "rows", x)
        check_dtype(op, x, "residual", residual)
