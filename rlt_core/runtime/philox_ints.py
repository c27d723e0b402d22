"""Philox-4x32-10 of Python ints: what a client of a stage draws, without torch.

`runtime.philox` is the same of tensors and says what keys and counters are; its tests compare both.
"""

from __future__ import annotations

from enum import IntEnum

MASK = 0xFFFFFFFF

# The two multipliers less 2**32: |x * M| stays below 2**62, so no int64 product overflows, and
# the high word of the true product is x + (x * M >> 32), with the shift rounding down.
M0 = 0xD2511F53 - (1 << 32)
M1 = 0xCD9E8D57 - (1 << 32)
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


class Purpose(IntEnum):
    """What a random number is for: the counter's second word. Numbers are never reused."""

    SAMPLE = 0
    START_STATE = 1
    SIBLING = 2


def sibling_seed(seed: int, i: int) -> int:
    """The seed of sibling i of a request's n, 0 to 2**63 - 1; sibling 0 keeps the seed itself."""
    if i == 0:
        return seed
    key_lo, key_hi = seed & MASK, (seed >> 32) & MASK
    low, high, _, _ = philox_rounds(key_lo, key_hi, i & MASK, int(Purpose.SIBLING), i >> 32, 0)
    return (high << 32 | low) & (1 << 63) - 1


def philox_rounds(
    key_lo: int, key_hi: int, c0: int, c1: int, c2: int, c3: int
) -> tuple[int, int, int, int]:
    """The four words of one counter."""
    for i in range(ROUNDS):
        low0, low1 = c0 * M0, c2 * M1
        high0, high1 = (low0 >> 32) + c0, (low1 >> 32) + c2
        c0, c2 = (
            high1 ^ c1 ^ ((key_lo + i * W0) & MASK),
            high0 ^ c3 ^ ((key_hi + i * W1) & MASK),
        )
        c1, c3 = low1 & MASK, low0 & MASK
    return c0, c1, c2, c3
