"""Host side of the swap space: which page of host memory holds what. Numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class SwapSpace:
    """`num_pages` pages of host memory; num_free of them hold nothing."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = self.num_free = num_pages
        self._stack: I64 = np.arange(num_pages, 0, -1) - 1

    def take(self, count: int) -> I64 | None:
        """`count` pages, ascending, so that neighbours travel in one copy; None without room."""
        if count > self.num_free:
            return None
        top, self.num_free = self.num_free, self.num_free - count
        return np.sort(self._stack[self.num_free : top])

    def give_back(self, pages: I64) -> None:
        """They hold nothing any more."""
        top, self.num_free = self.num_free, self.num_free + len(pages)
        self._stack[top : self.num_free] = pages
