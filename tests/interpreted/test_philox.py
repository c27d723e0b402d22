"""rlt-kernels' random bits against the runtime's own."""

from __future__ import annotations

import pytest
import torch

from rlt_core.runtime.philox import random_bits
from rlt_kernels import philox


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (3, 7), (2, 5280), (5, 64), (0, 8), (2, 0)])
def test_one_launch_gives_the_same_bits(rows: int, count: int, seed: int) -> None:
    """Another word, row or counter; a number past the row's end; seeds of 64 bits and below 0."""
    draw = torch.Generator().manual_seed(seed)
    key = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=draw)
    position = torch.randint(0, 2**32, (rows,), generator=draw)
    for purpose in (0, 1, 77):
        found = philox.random_bits(key, position, purpose, count)
        assert torch.equal(found, random_bits(key, position, purpose, count))
