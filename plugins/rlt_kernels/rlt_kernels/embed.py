"""The rows of an embedding table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.launch import RowLaunch, RowShape, aligned, can_overlap
from rlt_kernels.rows import inside_rows, own_rows, places

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit(do_not_specialize=("R", "V"), do_not_specialize_on_alignment=("tokens", "table", "out"))
def embed_rows(
    tokens,  # int64 [R]
    table,  # [V, W]
    out,  # [R, W]
    R,
    V,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS rows a program. A token out of range, as padded rows hold, gives the nearest row."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = own_rows(ROWS)
    column = tl.arange(0, BLOCK)
    inside = inside_rows(row, R, column, W, ROWS)
    token = tl.load(tokens + row, mask=row < R, other=0).to(tl.int64)
    token = tl.minimum(tl.maximum(token, 0), V - 1)
    value = tl.load(places(table + token * W, column, ALIGN, ROWS), mask=inside, other=0.0)
    tl.store(places(out + row * W, column, ALIGN, ROWS), value, mask=inside)


_launches: dict[tuple[object, ...], tuple[RowLaunch, RowShape]] = {}


def embed(tokens: Tensor, weight: Tensor) -> Tensor:
    """tokens int64 [R], weight [V, W] -> [R, W]; tokens below 0 or from V on are clamped.

    Raises ValueError for what does not fit.
    """
    if tokens.dim() != 1 or weight.dim() != 2:
        raise ValueError(
            f"embed: tokens {list(tokens.shape)} and weight {list(weight.shape)} do not fit: "
            "wanted [R] and [V, W]"
        )
    vocabulary, width = weight.shape
    key = (width, weight.dtype, weight.device)
    found = _launches.get(key)
    if found is None:
        found = _launches[key] = _make_launch(width, weight)
    launch, shape = found
    rows = tokens.shape[0]
    out = torch.empty((rows, width), dtype=weight.dtype, device=weight.device)
    if rows:
        table = aligned(weight.contiguous(), shape.align)
        launch((-(-rows // shape.rows), 1, 1), tokens.contiguous(), table, out, rows, vocabulary)
    return out


def _make_launch(width: int, weight: Tensor) -> tuple[RowLaunch, RowShape]:
    shape = RowShape(width, weight.dtype)
    constants = (width, shape.block, shape.rows, shape.align)
    launch = RowLaunch(embed_rows, constants, warps=shape.warps, pdl=can_overlap(weight.device))
    return launch, shape
