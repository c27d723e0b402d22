"""Counter-based random numbers: Philox-4x32-10, the same bits on every device and for any batch.

Nothing here has state. A number depends on its key (a 64-bit seed) and its counter (position,
purpose, lane, 0) alone, so a row draws the same whoever its neighbours are, in whatever order
the work is done, and again when the work is repeated.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.philox_ints import M0, M1, ROUNDS, W0, W1, Purpose
from rlt_core.runtime.philox_ints import MASK as MASK

Word = TypeVar("Word", int, Tensor)


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
    factors = _pair(M0, M1, even)
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
    rounds = torch.arange(ROUNDS, device=like.device).view(-1, *[1] * like.dim())
    return ((keys + rounds * _pair(W1, W0, like)) & MASK).unbind()


def _pair(first: int, second: int, like: Tensor) -> Tensor:
    """Two constants along `like`'s first dimension, made on its device."""
    values = torch.cat([torch.full((1,), value, device=like.device) for value in (first, second)])
    return values.view(2, *[1] * (like.dim() - 1))


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
