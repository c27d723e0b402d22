"""Rows that need logits, in parts that fit beside the pool."""

from __future__ import annotations

# What a part may take (stage.sizes keeps more free), and what it takes for each byte of logits:
# these, and 7.1 times as much for their order and sums where they are scored; policies take up to
# 8.5 in all (minp_kl).
PART_BYTES, PART_PEAK = 1 << 30, 9


def logit_parts(num_rows: int, vocab_size: int) -> list[slice]:
    """Slices that cover the rows, one at least: all prompt rows of a tick may need logits, and each
    takes a vocabulary's room."""
    size = max(PART_BYTES // (PART_PEAK * 4 * vocab_size), 1)
    return [slice(first, first + size) for first in range(0, max(num_rows, 1), size)]
