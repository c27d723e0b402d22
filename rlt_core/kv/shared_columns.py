"""Which blocks of the prefix cache each slot holds: always its first columns, in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlt_core.kv.prefix import Block, PrefixCache

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_NO_PAGES: I32 = np.zeros(0, np.int32)


class SharedColumns:
    """The chains of all slots; pages are given in the order of a slot's table, row by row."""

    def __init__(
        self, kinds: Sequence[tuple[int, ...]], num_slots: int, max_depth: int, cache: PrefixCache
    ) -> None:
        """kinds: table rows by kind, as in kv.page_kinds."""
        self._cache = cache
        self._chains: list[list[Block]] = [[] for _ in range(num_slots)]
        self._kept = [False] * num_slots  # it holds the rows that are kept after a prompt
        prompts, dropped = kinds[:max_depth], kinds[2 * max_depth :]
        self._dropped = [
            np.flatnonzero(np.isin(rows, gone)) for rows, gone in zip(prompts, dropped, strict=True)
        ]
        self._rest = [
            np.flatnonzero(~np.isin(rows, gone))
            for rows, gone in zip(prompts, dropped, strict=True)
        ]

    def count(self, slot: int) -> int:
        """Shared columns of a slot."""
        return len(self._chains[slot])

    def key(self, slot: int, column: int) -> bytes:
        """The key of a shared column."""
        return self._chains[slot][column].key

    def take(self, slot: int, chain: Sequence[Block]) -> I32:
        """A slot without any begins with these; their pages."""
        self._cache.use(chain)
        self._chains[slot] = list(chain)
        return self.pages(slot)

    def publish(self, slot: int, loops: int, key: bytes, own: I32, *, lasting: bool) -> I32:
        """The slot's next column joins its chain: as a new block of its `own` pages, or as the
        block of that key; the block's pages."""
        block = self._cache.get(key)
        if block is None:
            block = Block(
                key=key,
                pages=own,
                dropped=self._dropped[loops - 1],
                kept=self._rest[loops - 1],
                lasting=lasting,
            )
            self._cache.put(block)
        else:
            self._cache.use((block,))
        self._chains[slot].append(block)
        return block.pages

    def keep(self, slot: int) -> I32:
        """The slot drops the planes of its prompt; pages that are free now."""
        self._kept[slot] = True
        return self._cache.keep(self._chains[slot])

    def leave(self, slot: int, *, ended: bool) -> I32:
        """The slot's request ended or was preempted; pages that are free now."""
        chain, self._chains[slot] = self._chains[slot], []
        kept, self._kept[slot] = self._kept[slot], False
        return self._cache.unkeep(chain) if kept else self._cache.release(chain, ended=ended)

    def pages(self, slot: int) -> I32:
        """The pages of a slot's shared columns."""
        chain = self._chains[slot]
        if not chain:
            return _NO_PAGES
        kept = self._kept[slot]
        columns = [block.pages[block.kept] if kept else block.pages for block in chain]
        return np.stack(columns, 1).ravel()

    def owned(self) -> I32:
        """Every page that a block owns, once: blocks that can be found, and what slots keep of
        those that cannot."""
        found = [block.pages for block in self._cache.blocks()]
        lost = {id(block): block for chain in self._chains for block in chain if not block.cached}
        found += [block.pages[block.kept] for block in lost.values()]
        return np.concatenate([_NO_PAGES, *found])

    def check(self) -> None:
        """Raise AssertionError unless the blocks count the slots that hold them."""
        users, keepers = dict[int, int](), dict[int, int]()
        for chain, kept in zip(self._chains, self._kept, strict=True):
            for block in chain:
                counts = keepers if kept else users
                counts[id(block)] = counts.get(id(block), 0) + 1
        idle = 0
        for block in self._cache.blocks():
            wanted = (users.get(id(block), 0), keepers.get(id(block), 0))
            assert (block.users, block.keepers) == wanted, f"{block} has {wanted}"
            idle += 0 if block.users else block.num_idle
        assert idle == self._cache.num_idle, f"{self._cache.num_idle} is not {idle}"
