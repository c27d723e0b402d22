"""SiLU of the gate times up, as one function for every kernel that needs it, and as an operator."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rlt_kernels.launch import RowLaunch, RowShape, aligned, can_overlap
from rlt_kernels.rows import inside_rows, own_rows, places

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_BLOCK = 1024


@triton.jit
def silu_times(gate, up):
    """silu(gate) in float32, rounded to the dtype, times up, rounded: both of one dtype.

    The quotient is the correctly rounded one: an approximate one could differ with the code
    around it.
    """
    wide = gate.to(tl.float32)
    below = tl.exp(-wide) + 1.0
    if gate.dtype == tl.float32:
        silu = tl.math.div_rn(wide, below)
    else:
        silu = _narrow_quotient(wide, below)
    silu = silu.to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _narrow_quotient(x, below):
    """x / below, to more bits than a 16-bit float keeps; below = 1 + exp(-x).

    div_rn has a branch for every element, which leaves the tensor cores waiting in a product's
    epilogue. One step of refinement brings a reciprocal of any rounding within an ulp of float32,
    and no 16-bit gate lies so near to the middle between two results (all of them are tested).
    """
    far = below >= 2.0**64  # where the reciprocal would have too few bits
    scale = tl.where(far, 2.0**-64, 1.0)
    inverse = 1.0 / (below * scale)
    part = x * scale
    quotient = part * inverse
    quotient = tl.fma(tl.fma(-(below * scale), quotient, part), inverse, quotient)
    # exp came to infinity, or to nothing: the step above would make NaN of an infinite x; and it
    # would take the sign from a zero
    quotient = tl.where(below == float("inf"), x * 0.0, quotient)
    return tl.where((below == 1.0) | (x == 0.0), x, quotient)


@triton.jit(do_not_specialize=("R", "stride"), do_not_specialize_on_alignment=("gate_up", "out"))
def silu_rows(
    gate_up,  # [R, 2 F], rows `stride` apart
    out,  # [R, F]
    R,
    stride,
    F: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program: ROWS rows by BLOCK columns."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = own_rows(ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = inside_rows(row, R, column, F, ROWS)
    start = gate_up + row * stride
    gate = tl.load(places(start, column, ALIGN, ROWS), mask=inside, other=0.0)
    up = tl.load(places(start + F, column, ALIGN, ROWS), mask=inside, other=0.0)
    tl.store(places(out + row * F, column, ALIGN, ROWS), silu_times(gate, up), mask=inside)


_launches: dict[tuple[object, ...], tuple[RowLaunch, RowShape, int]] = {}


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] (gate first) -> silu(gate), rounded to the dtype, times up: [R, F].

    Raises ValueError for what does not fit.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"silu_mul: gate_up {list(gate_up.shape)} does not fit: wanted [R, 2 F]")
    out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
    silu_mul_into(gate_up, out)
    return out


def silu_mul_into(gate_up: Tensor, out: Tensor) -> None:
    """silu_mul into a contiguous out [R, F]."""
    rows, width = out.shape
    key = (width, gate_up.dtype, gate_up.device)
    found = _launches.get(key)
    if found is None:
        found = _launches[key] = _make_launch(width, gate_up)
    launch, shape, block = found
    if rows:
        gate_up = aligned(gate_up, shape.align)
        grid = (-(-rows // shape.rows), -(-width // block), 1)
        launch(grid, gate_up, out, rows, gate_up.stride(0))


def _make_launch(width: int, gate_up: Tensor) -> tuple[RowLaunch, RowShape, int]:
    shape = RowShape(width, gate_up.dtype)
    block = min(shape.block, _BLOCK)
    constants = (width, block, shape.rows, shape.align)
    warps = min(shape.warps, 4)
    pdl = can_overlap(gate_up.device)
    return RowLaunch(silu_rows, constants, warps=warps, pdl=pdl), shape, block
