"""Launching a kernel whose work is one row at a time, at the least cost in Python.

One compiled kernel serves every row count of a width and dtype: rows and strides are plain
arguments that nothing is specialised for. A row's bits therefore cannot depend on them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

# The largest tile of one program; a wider row would leave the registers.
MOST_WIDTH = 65536
_TILE = 1024


class RowLaunch:
    """A kernel and its constants; the first call compiles, the others go straight to it."""

    def __init__(self, kernel: Any, constants: tuple[Any, ...], *, warps: int, pdl: bool) -> None:
        self.kernel = kernel
        self.constants = (*constants, pdl)
        # No fused multiply-add: a product is rounded before it is added, as in plain torch.
        self.options: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": False}
        if pdl:
            self.options["launch_pdl"] = True
        self.compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], *args: Any) -> None:
        """Run it with the kernel's arguments that are no constants."""
        if self.compiled is not None:
            self.compiled[grid](*args, *self.constants)
        else:
            # None under the interpreter, which therefore always comes here
            self.compiled = self.kernel[grid](*args, *self.constants, **self.options)


class RowShape:
    """How rows of one width are cut up: a function of width and dtype alone.

    block: the power of two at or above the width; rows: of one program; align: bytes that every
    row's start is a multiple of.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        if not 0 < width <= MOST_WIDTH:
            raise ValueError(f"rows of {width} values: 1 to {MOST_WIDTH} fit a program")
        self.width = width
        self.block = triton.next_power_of_2(width)
        self.rows = max(_TILE // self.block, 1)
        self.warps = min(max(self.block * self.rows // 256, 1), 16)
        row_bytes = width * dtype.itemsize
        self.align = min(row_bytes & -row_bytes, 16)


def aligned(x: Tensor, align: int) -> Tensor:
    """x where its rows are contiguous and start at multiples of `align` bytes, else a copy."""
    strides = x.stride()
    start = x.data_ptr()
    for stride in strides[:-1]:
        start |= stride * x.element_size()
    if strides[-1] != 1 or start & (align - 1):
        return x.clone(memory_format=torch.contiguous_format)
    return x


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start before the one in front of it has ended (sm_90 and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def misfit(name: str, tensor: Tensor, wanted: str, beside: str, other: Tensor) -> ValueError:
    """A shape that does not fit, with both shapes by name."""
    return ValueError(
        f"{name} {list(tensor.shape)} does not fit: wanted {wanted} for {beside} "
        f"{list(other.shape)}"
    )


def check_dtype(op: str, x: Tensor, name: str, other: Tensor) -> None:
    """Raise ValueError where `other` is of another dtype than x."""
    if other.dtype != x.dtype:
        raise ValueError(f"{op}: {name} is {other.dtype}, the rows are {x.dtype}; they must agree")
