"""What the tests marked gpu have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

DEVICE = "cuda"
TOTAL = 300
ROWS = (
    *(1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257),
    *(299, 300),
)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

RowFunction = Callable[[Tensor], Tensor]


def needs_gpu() -> None:
    """Skip the test where there is no CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def random(seed: int, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers times `scale`, the same on every machine."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=draw) * scale).to(DEVICE, dtype)


def bits(x: Tensor) -> Tensor:
    """The values' bits as integers, so that -0.0 is not 0.0."""
    return x.view(torch.int32 if x.itemsize == 4 else torch.int16)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether all bits agree."""
    return torch.equal(bits(one.contiguous()), bits(other.contiguous()))


def differing(function: RowFunction, x: Tensor) -> list[str]:
    """Where a row's bits change with the row count or its place among x's rows."""
    together = function(x)
    found = []
    for count in ROWS:
        for start in {0, (len(x) - count) // 2, len(x) - count}:
            rows = slice(start, start + count)
            if not same(function(x[rows]), together[rows]):
                found.append(f"rows {start} to {start + count}")
    return found
