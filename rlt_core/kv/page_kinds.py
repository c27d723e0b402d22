"""Which rows of its page table a slot uses: by phase and number of loops.

A kind is phase * max_depth + loops - 1, the phases being prompt, decode and dropped (the rows of
the prompt that decoding does not use).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlt_core.kv.accounting import page_rows
from rlt_core.kv.plan import KVPlan

I64 = NDArray[np.int64]
B8 = NDArray[np.bool_]


def page_kinds(plan: KVPlan) -> list[tuple[int, ...]]:
    """Table rows by kind: prompt, decode and dropped ones, each for 1 to max_depth loops."""
    depths = range(1, plan.max_depth + 1)
    prompt = [page_rows(plan, loops, "prompt") for loops in depths]
    decode = [page_rows(plan, loops, "decode") for loops in depths]
    dropped = [
        tuple(row for row in before if row not in set(after))
        for before, after in zip(prompt, decode, strict=True)
    ]
    return prompt + decode + dropped


def row_index(rows: tuple[int, ...]) -> slice | I64:
    """An index of these table rows; a slice, which is quicker, where it can be one."""
    if rows and rows == tuple(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return np.array(rows, np.int64)


def padded(kinds: list[tuple[int, ...]], pages_per_row: int) -> tuple[I64, B8]:
    """(offset of each row's entries in a slot's table [kinds, most rows], which are rows)."""
    longest = max(map(len, kinds))
    offsets = np.zeros((len(kinds), longest), np.int64)
    has_row = np.zeros((len(kinds), longest), np.bool_)
    for kind, rows in enumerate(kinds):
        offsets[kind, : len(rows)] = rows
        has_row[kind, : len(rows)] = True
    return offsets * pages_per_row, has_row
