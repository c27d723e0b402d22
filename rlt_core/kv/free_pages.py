"""The pages that can be had: those that hold nothing, and cached ones that nobody uses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlt_core.kv.prefix import PrefixCache

I32 = NDArray[np.int32]
_NO_PAGES: I32 = np.zeros(0, np.int32)


class FreePages:
    """Free pages of a pool of `num_pages`, page 0 (the sentinel) never among them.

    With `shuffle_seed` they come in random order, so that reuse is adversarial; else the last
    freed come first. Cached pages are taken when no others are left. num_empty: those that hold
    nothing.
    """

    def __init__(self, num_pages: int, cache: PrefixCache, shuffle_seed: int | None = None) -> None:
        self._cache = cache
        self._rng = None if shuffle_seed is None else np.random.default_rng(shuffle_seed)
        # A stack: entries below num_empty hold nothing, the next one given is the topmost.
        self._stack: I32 = np.arange(num_pages, 0, -1, dtype=np.int32) - 1
        self.num_empty = num_pages - 1
        if self._rng is not None:
            self._rng.shuffle(self._stack[: self.num_empty])
        self._freed: list[I32] = []

    @property
    def empty(self) -> I32:
        """Those that hold nothing."""
        return self._stack[: self.num_empty]

    def pop(self, count: int) -> I32:
        """The next `count` pages, which the caller knows to be there; valid until the next push."""
        if count > self.num_empty:
            assert count <= self.num_empty + self._cache.num_idle, f"{count} pages"
            self.push(self._cache.evict(count - self.num_empty))
        top, self.num_empty = self.num_empty, self.num_empty - count
        return self._stack[self.num_empty : top]

    def push(self, pages: I32) -> None:
        """Take pages back."""
        if not len(pages):
            return
        self._freed.append(pages)
        top, self.num_empty = self.num_empty, self.num_empty + len(pages)
        if self._rng is None:
            self._stack[top : self.num_empty] = pages
            return
        places = self._rng.integers(0, top + 1, len(pages))
        mixed = np.insert(self._stack[:top], places, self._rng.permutation(pages))
        self._stack[: self.num_empty] = mixed

    def take_freed(self) -> I32:
        """Pages that were freed since the last call, given again or not: int32 [N]."""
        if not self._freed:
            return _NO_PAGES
        pages = self._freed[0] if len(self._freed) == 1 else np.concatenate(self._freed)
        self._freed = []
        return pages
