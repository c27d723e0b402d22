"""Random bits keyed by seed and position: rlt_core.runtime.philox in one launch, to the bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

_BLOCK = 1024


@triton.jit
def philox(seed, c0, c1, c2, c3):
    """Philox-4x32-10 (Salmon et al., SC 2011) of counters uint32 [N] and an int64 key: 4 words."""
    key0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    key1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, tl.full(c0.shape, 0xD2511F53, tl.uint32))
        low0 = c0 * tl.full(c0.shape, 0xD2511F53, tl.uint32)
        high1 = tl.umulhi(c2, tl.full(c0.shape, 0xCD9E8D57, tl.uint32))
        low1 = c2 * tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
        c0 = high1 ^ c1 ^ key0
        c1 = low1
        c2 = high0 ^ c3 ^ key1
        c3 = low0
        key0 = (key0.to(tl.int64) + 0x9E3779B9).to(tl.uint32)
        key1 = (key1.to(tl.int64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit(do_not_specialize=("purpose", "count"))
def fill_bits(seed_ptr, position_ptr, out_ptr, purpose, count, BLOCK: tl.constexpr):
    """BLOCK counters of one row, four numbers each."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c2 = lane.to(tl.uint32)
    none = tl.zeros_like(c2)
    c0 = none + (tl.load(position_ptr + row) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = philox(tl.load(seed_ptr + row), c0, none + purpose.to(tl.uint32), c2, none)
    at = 4 * lane
    place = out_ptr + row * count + at
    tl.store(place, w0.to(tl.int64), mask=at < count)
    tl.store(place + 1, w1.to(tl.int64), mask=at + 1 < count)
    tl.store(place + 2, w2.to(tl.int64), mask=at + 2 < count)
    tl.store(place + 3, w3.to(tl.int64), mask=at + 3 < count)


def random_bits(seed: Tensor, position: Tensor, purpose: int, count: int) -> Tensor:
    """See contract.steps.RandomBits."""
    rows = seed.shape[0]
    out = torch.empty((rows, count), dtype=torch.int64, device=seed.device)
    lanes = triton.cdiv(count, 4)
    block = min(_BLOCK, triton.next_power_of_2(lanes))
    if rows and count:
        seed, position = seed.contiguous(), position.contiguous()
        fill_bits[(rows, triton.cdiv(lanes, block))](
            seed, position, out, purpose, count, BLOCK=block
        )
    return out
