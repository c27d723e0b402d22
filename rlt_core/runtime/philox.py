"""Counter-based random numbers: Philox-4x32-10, the same bits on every device and for any batch.

Nothing here has state. A number depends on its key (a 64-bit seed) and its counter (position,
purpose, lane, 0) alone, so a row draws the same whoever its neighbours are, in whatever order
the work is done, and again when the work is repeated.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

MASK = 0xFFFFFFFF

# The two multipliers less 2**32: |x * M| stays below 2**62, so no int64 product overflows, and
# the high word of the true product is x + (x * M >> 32), with the shift rounding down.
_M0 = 0xD2511F53 - (1 << 32)
_M1 = 0xCD9E8D57 - (1 << 32)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

Word = TypeVar("Word", int, Tensor)


class Purpose(IntEnum):
    """What a random number is for: the counter's second word. Numbers are never reused."""

    SAMPLE = 0
    START_STATE = 1
    SIBLING = 2


def philox4x32(
    key_lo: Tensor, key_hi: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 of int64 tensors that hold uint32, broadcast against each other.

    Returns the four words in the broadcast shape, int64 that hold uint32.
    """
    words = (key_lo, key_hi, c0, c1, c2, c3)
    # torch.broadcast_shapes imports sympy; broadcast_tensors has fewer operators at one row.
    shape = np.broadcast_shapes(*(word.shape for word in words))
    # Both halves of a round side by side: with few rows an operator costs more than its elements.
    even = torch.stack((c0.expand(shape), c2.expand(shape)))
    odd = torch.stack((c3.expand(shape), c1.expand(shape)))
    factors = _pair(_M0, _M1, even)
    for key in _round_keys(key_lo, key_hi, even):
        low = even * factors
        high = low >> 32
        # In place on tensors made in this round; the arguments are only read.
        high += even
        high ^= odd
        high ^= key
        low &= MASK
        even, odd = high.flip(0), low
    return even[0], odd[1], even[1], odd[0]


def _round_keys(key_lo: Tensor, key_hi: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Each round's (high, low) key: int64 [2, ...] that broadcast against `like`."""
    shape = np.broadcast_shapes(key_hi.shape, key_lo.shape)
    keys = torch.stack((key_hi.expand(shape), key_lo.expand(shape)))
    keys = keys.view(2, *[1] * (like.dim() - keys.dim()), *keys.shape[1:])
    rounds = torch.arange(_ROUNDS, device=like.device).view(-1, *[1] * like.dim())
    return ((keys + rounds * _pair(_W1, _W0, like)) & MASK).unbind()


def _pair(first: int, second: int, like: Tensor) -> Tensor:
    """Two constants along `like`'s first dimension, made on its device."""
    values = torch.cat([torch.full((1,), value, device=like.device) for value in (first, second)])
    return values.view(2, *[1] * (like.dim() - 1))


def philox_rounds(
    key_lo: int, key_hi: int, c0: int, c1: int, c2: int, c3: int
) -> tuple[int, int, int, int]:
    """The same of Python ints, for the host."""
    for i in range(_ROUNDS):
        low0, low1 = c0 * _M0, c2 * _M1
        high0, high1 = (low0 >> 32) + c0, (low1 >> 32) + c2
        c0, c2 = (
            high1 ^ c1 ^ ((key_lo + i * _W0) & MASK),
            high0 ^ c3 ^ ((key_hi + i * _W1) & MASK),
        )
        c1, c3 = low1 & MASK, low0 & MASK
    return c0, c1, c2, c3


def split_seed(seed: Word) -> tuple[Word, Word]:
    """(low, high) 32-bit words of 64-bit seeds; a negative int64 stands for its unsigned twin."""
    return seed & MASK, (seed >> 32) & MASK


def uniform(bits: Tensor) -> Tensor:
    """float32 strictly between 0 and 1 from int64 that hold uint32: (bits // 512 + 0.5) / 2**23.

    Every step is exact, so that the value is the same on every device.
    """
    return (bits >> 9).to(torch.float32).add_(0.5).mul_(2.0**-23)


def gumbel_noise(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise float32 [rows, vocab]; seed and position int64 [rows].

    Token t of a row takes word t % 4 of the counter (position, SAMPLE, t // 4, 0).
    """
    # The logarithms run on whole lanes, before the cut: contiguous, wherever the row lies.
    u = uniform(random_bits(seed, position, Purpose.SAMPLE, -(-vocab // 4) * 4))
    return u.log_().neg_().log_().neg_()[:, :vocab]


def random_bits(seed: Tensor, position: Tensor, purpose: int, count: int) -> Tensor:
    """See contract.steps.RandomBits."""
    key_lo, key_hi = split_seed(seed[:, None])
    lane = torch.arange(-(-count // 4), device=seed.device)[None, :]
    zero = torch.zeros_like(lane)
    words = philox4x32(key_lo, key_hi, position[:, None], zero + purpose, lane, zero)
    return torch.stack(words, -1).flatten(1)[:, :count]


def sibling_seed(seed: int, i: int) -> int:
    """The seed of sibling i of a request's n, 0 to 2**63 - 1; sibling 0 keeps the seed itself."""
    if i == 0:
        return seed
    key_lo, key_hi = split_seed(seed)
    low, high, _, _ = philox_rounds(key_lo, key_hi, i & MASK, int(Purpose.SIBLING), i >> 32, 0)
    return (high << 32 | low) & (1 << 63) - 1
