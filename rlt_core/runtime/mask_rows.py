"""Masks on their way to the device: which tokens a request may draw next (TickInput.masks)."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


class MaskRows(msgspec.Struct, kw_only=True, eq=False):
    """The masks of N slots, no slot twice.

    slot, index: int64 [N], the slot and the output (from 0) that its mask is for. words: int32
    [N, num_words]: bit i of word w says whether token 32 w + i may be drawn.
    """

    slot: NDArray[np.int64]
    index: NDArray[np.int64]
    words: NDArray[np.int32]


def num_words(vocab_size: int) -> int:
    """int32 words of one mask."""
    return -(-vocab_size // WORD_BITS)


def allows_any(words: NDArray[np.int32], vocab_size: int) -> bool:
    """Whether a mask int32 [num_words] lets any token through; bits past the last are nobody's."""
    rest = vocab_size % WORD_BITS
    last = int(words[-1]) & ((1 << rest) - 1 if rest else -1)
    return bool(words[:-1].any() or last)
