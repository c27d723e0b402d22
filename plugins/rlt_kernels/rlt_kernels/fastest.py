"""Products for `--exact off`: this package's or the library's, whichever is faster for the shape.

Both are timed once for each weight shape and bucket of rows, when a tick first needs them, on
copies that together leave the cache, and behind a norm, as a layer has them: this package's begin
before the norm has ended. The library's change a row's bits with the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rlt_kernels import products
from rlt_kernels.norms import rms_norm
from rlt_kernels.silu import silu_mul
from rlt_kernels.tiles import bucket
from rlt_kernels.tune.timing import graph_micros, num_copies

_Product = Callable[[Tensor, Tensor], Tensor]
_chosen: dict[tuple[object, ...], bool] = {}  # whether the library's is faster


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, num_rows: Tensor | None = None
) -> Tensor:
    """As products.linear, but for the order of additions; rows past num_rows may be computed."""
    if _library_is_faster("linear", x, weight, lambda a, w: F.linear(a, w, bias)):
        return F.linear(x, weight, bias)
    return products.linear(x, weight, bias, num_rows)


def linear_silu_mul(x: Tensor, weight: Tensor, num_rows: Tensor | None = None) -> Tensor:
    """As products.linear_silu_mul, in the same sense."""

    def two(a: Tensor, w: Tensor) -> Tensor:
        return silu_mul(F.linear(a, w))

    if _library_is_faster("linear_silu_mul", x, weight, two):
        return two(x, weight)
    return products.linear_silu_mul(x, weight, num_rows)


def _library_is_faster(op: str, x: Tensor, weight: Tensor, library: _Product) -> bool:
    key = (op, x.dtype, *weight.shape, bucket(x.shape[0]), x.device)
    known = _chosen.get(key)
    if known is None:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing can be timed here; ticks run once before they are captured
        own: _Product = getattr(products, op)
        known = _chosen[key] = time_of(library, x, weight) < time_of(own, x, weight)
    return known


def time_of(product: _Product, x: Tensor, weight: Tensor) -> float:
    """Microseconds of one product and the norm in front of it, weights read from memory."""
    copies = [weight.clone() for _ in range(num_copies(weight.nbytes))]
    rows, gain = x.contiguous(), x.new_ones(x.shape[-1])

    def launch(index: int) -> None:
        product(rms_norm(rows, gain, 1e-6), copies[index])

    return graph_micros(launch, launches=len(copies))
