"""The products as operators: shapes checked, tile looked up once, then a thin launch.

Eager ticks call these about a hundred times, so what a call needs is kept per (operator, dtype,
shape, row bucket, which arguments are given) and a launch goes straight to the compiled kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from rlt_kernels.product import many_product, rows_product
from rlt_kernels.silu import silu_mul_into
from rlt_kernels.tiles import Key, Tile, bucket, choose

_launches: dict[tuple[object, ...], Launch | TwoLaunches] = {}


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, num_rows: Tensor | None = None
) -> Tensor:
    """x [R, K], weight [N, K], bias [N] -> [R, N] in x's dtype, rounded once.

    num_rows int32 [1] on the device: rows from there on are not computed (whole row tiles) and
    hold anything. Raises ValueError for shapes or dtypes that do not fit.
    """
    if weight.shape[1] != x.shape[1]:
        raise _misfit("weight", weight, "[N, K]", x)
    if bias is not None and bias.shape[0] != weight.shape[0]:
        raise _misfit("bias", bias, "[N] of the weight's", weight)
    return _run("linear", x, weight, weight.shape[0], bias, num_rows)


def linear_silu_mul(x: Tensor, weight: Tensor, num_rows: Tensor | None = None) -> Tensor:
    """x [R, K], weight [2 F, K] (gate first) -> silu_mul(linear(x, weight)) [R, F], same bits.

    num_rows as in `linear`. Raises ValueError for shapes or dtypes that do not fit.
    """
    if weight.shape[1] != x.shape[1] or weight.shape[0] % 2:
        raise _misfit("weight", weight, "[2 F, K]", x)
    return _run("linear_silu_mul", x, weight, weight.shape[0] // 2, None, num_rows)


def _run(
    op: str, x: Tensor, weight: Tensor, n: int, bias: Tensor | None, num_rows: Tensor | None
) -> Tensor:
    rows, k = x.shape
    if x.dtype != weight.dtype:
        raise ValueError(f"{op}: weight is {weight.dtype}, x is {x.dtype}; they must be equal")
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    # A compiled kernel loads as widely as the first call's addresses allowed.
    aligned = tuple(t is None or t.data_ptr() % 16 == 0 for t in (x, weight, bias))
    key = (op, x.dtype, n, k, bucket(rows), bias is None, num_rows is None, aligned, x.device)
    launch = _launches.get(key)
    if launch is None:
        launch = _launches[key] = _make_launch(op, x, n, bias, num_rows, all(aligned))
    launch(x, weight, bias, num_rows, out)
    return out


class Launch:
    """One product with its tile, for any row count of its bucket."""

    def __init__(
        self, tile: Tile, *, op: str, n: int, k: int, bias: bool, rows: bool, programs: int
    ) -> None:
        self.tile, self.n, self.programs = tile, n, programs
        silu = self.silu = op == "linear_silu_mul"
        self.width = tile.bn // 2 if silu else tile.bn
        shape = (k, tile.bm, tile.bn, tile.bk, tile.stages)
        flags = (silu, bias, rows, tile.pdl)
        parts = max(tile.warps * 32 // tile.bn, 1)
        if tile.kind == "many":
            self.kernel = many_product
            self.constants: tuple[Any, ...] = (
                *(*shape, tile.swap, tile.pre, parts, tile.group, programs),
                *(*flags, tile.special),
            )
        else:
            self.kernel = rows_product
            self.constants = (*shape, tile.swap, tile.peel, tile.pre, parts, *flags)
        self.options = {"num_warps": tile.warps, "num_stages": tile.stages}
        if tile.pdl:
            self.options["launch_pdl"] = True
        self.compiled: Any = None

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, num_rows: Tensor | None, out: Tensor
    ) -> None:
        """Write the product to out [R, n]."""
        grid, args = self.arguments(x, weight, bias, num_rows, out)
        if self.compiled is not None:
            self.compiled[grid](*args)
        else:
            # None under the interpreter, which therefore always comes here
            self.compiled = self.kernel[grid](*args, **self.options)

    def warm(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, num_rows: Tensor | None, out: Tensor
    ) -> Any:
        """Compile without running; returns the compiled kernel."""
        grid, args = self.arguments(x, weight, bias, num_rows, out)
        return self.kernel.warmup(*args, grid=grid, **self.options)

    def arguments(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, num_rows: Tensor | None, out: Tensor
    ) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
        """(grid, all arguments of the kernel in order)."""
        tile, rows = self.tile, x.shape[0]
        tiles = -(-rows // tile.bm) * -(-self.n // self.width)
        if tile.kind == "rows":
            return (tiles, 1, 1), (x, weight, bias, num_rows, out, rows, self.n, *self.constants)
        left = TensorDescriptor(x, x.shape, x.stride(), [tile.bm, tile.bk])
        right = _described(weight, self.silu, [self.width, tile.bk])
        grid = (min(tiles, self.programs), 1, 1)
        return grid, (left, right, weight, bias, num_rows, out, rows, self.n, *self.constants)


class TwoLaunches:
    """gate-up and then silu_mul, where their product is faster alone (Tile.apart)."""

    def __init__(self, product: Launch) -> None:
        self.product = product

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, num_rows: Tensor | None, out: Tensor
    ) -> None:
        """Write linear_silu_mul to out [R, F]; weight [2 F, K]."""
        wide = out.new_empty((x.shape[0], weight.shape[0]))
        self.product(x, weight, bias, num_rows, wide)
        silu_mul_into(wide, out)

    def warm(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, num_rows: Tensor | None, out: Tensor
    ) -> Any:
        """Compile the product without running; returns the compiled kernel."""
        return self.product.warm(x, weight, bias, num_rows, out)


def _described(weight: Tensor, pairs: bool, block: list[int]) -> TensorDescriptor:
    """The weight for copies of `block` [rows, K] elements; pairs: of so many gate rows and the up
    rows that belong to them."""
    if pairs:
        weight, block = weight.view(2, -1, weight.shape[1]), [2, *block]
    return TensorDescriptor(weight, weight.shape, weight.stride(), block)


def make_launch(
    tile: Tile, op: str, x: Tensor, n: int, *, bias: bool = False, rows: bool = False
) -> Launch | TwoLaunches:
    """A launch with a given tile (the tuner's way in)."""
    if tile.apart and op == "linear_silu_mul":
        plain = replace(tile, apart=False)
        product = make_launch(plain, "linear", x, 2 * n, bias=bias, rows=rows)
        return TwoLaunches(cast(Launch, product))
    programs = 1
    if x.is_cuda:
        programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    return Launch(tile, op=op, n=n, k=x.shape[1], bias=bias, rows=rows, programs=programs)


def _make_launch(
    op: Any, x: Tensor, n: int, bias: Tensor | None, num_rows: Tensor | None, aligned: bool
) -> Launch | TwoLaunches:
    dtype = str(x.dtype).removeprefix("torch.")
    key = Key(op=op, dtype=dtype, n=n, k=x.shape[1], rows=bucket(x.shape[0]))
    chip, capability = "", (8, 0)
    if x.is_cuda and aligned:
        chip = torch.cuda.get_device_name(x.device)
        capability = torch.cuda.get_device_capability(x.device)
    tile = choose(chip, capability, key)
    return make_launch(tile, op, x, n, bias=bias is not None, rows=num_rows is not None)


def _misfit(name: str, tensor: Tensor, wanted: str, other: Tensor) -> ValueError:
    return ValueError(
        f"{name} {list(tensor.shape)} does not fit: wanted {wanted} beside {list(other.shape)}"
    )


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), on a CPU."""
    return bool(triton.knobs.runtime.interpret)
