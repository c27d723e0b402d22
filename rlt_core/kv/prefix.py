"""Blocks of written KV that several requests may read, found by what they hold.

A block is one page column (`page_size` positions, a page for each table row of a prompt) whose
positions are committed and never written again. Its key is a digest of everything that decides its
bits: chained over the blocks before it (PrefixKeys), so that a block is only ever found behind
the same past. Slots count themselves in (`users`); what nobody uses stays until pages run out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlt_core.contract.layouts import LayoutTables

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_NO_PAGES: I32 = np.zeros(0, np.int32)


class Block(msgspec.Struct, eq=False, kw_only=True):
    """One published page column.

    pages int32, one for each table row of a prompt; dropped int64: those among them that a slot
    gives back after its prompt (empty in most layouts), kept the others. users: slots that hold all
    its pages; keepers: slots past their prompt that hold the kept ones. lasting: other requests
    may find it; else it serves a resume of its own request and goes with it. cached: it can
    still be found.
    """

    key: bytes
    pages: I32
    dropped: I64
    kept: I64
    lasting: bool
    users: int = 0
    keepers: int = 0
    cached: bool = True

    @property
    def num_idle(self) -> int:
        """Pages that could be had by forgetting it, given that it has no users."""
        return len(self.dropped) if self.keepers else len(self.pages)


def num_idle(chain: Sequence[Block]) -> int:
    """Pages of these blocks that could be had by forgetting those without users."""
    return sum(block.num_idle for block in chain if not block.users)


class PrefixCache:
    """Published blocks. Those without users are idle: least recently used first, and a block
    always before the one it follows, because a chain is released from its end.

    num_idle: pages that idle blocks would give back. evictions: blocks forgotten for their pages.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, Block] = {}
        self._idle: OrderedDict[bytes, Block] = OrderedDict()
        self.num_idle = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: bytes) -> Block | None:
        """The block of this key."""
        return self._found.get(key)

    def put(self, block: Block) -> None:
        """A new block with one user, whose key is not there."""
        block.users = 1
        self._found[block.key] = block

    def use(self, chain: Sequence[Block]) -> None:
        """One more slot reads these blocks."""
        for block in chain:
            if not block.users:
                self.num_idle -= block.num_idle
                del self._idle[block.key]
            block.users += 1

    def keep(self, chain: Sequence[Block]) -> I32:
        """A slot that used them keeps only what is kept after a prompt; pages that are free now."""
        for block in chain:
            block.keepers += 1
        return self.release(chain, ended=False)

    def release(self, chain: Sequence[Block], *, ended: bool) -> I32:
        """A slot that used them lost its request, or the request ended; pages that are free now."""
        freed = []
        for block in reversed(chain):
            block.users -= 1
            if block.users:
                continue
            if ended and not block.lasting:
                freed.append(self._forget(block))
            else:
                self._idle[block.key] = block
                self.num_idle += block.num_idle
        return np.concatenate(freed) if freed else _NO_PAGES

    def unkeep(self, chain: Sequence[Block]) -> I32:
        """A slot that kept the kept pages ended; pages that are free now."""
        freed = []
        for block in chain:
            block.keepers -= 1
            if not block.keepers:
                if not block.cached:
                    freed.append(block.pages[block.kept])
                elif not block.users:
                    self.num_idle += len(block.kept)
        return np.concatenate(freed) if freed else _NO_PAGES

    def evict(self, num_pages: int) -> I32:
        """Forget idle blocks until they gave at least so many pages, which the caller knows to
        be there."""
        freed, num = [], 0
        while num < num_pages:
            _, block = self._idle.popitem(last=False)
            freed.append(self._forget(block))
            num += len(freed[-1])
            self.num_idle -= len(freed[-1])
            self.evictions += 1
        return np.concatenate(freed) if freed else _NO_PAGES

    def blocks(self) -> list[Block]:
        """All that can be found, for checks."""
        return list(self._found.values())

    def _forget(self, block: Block) -> I32:
        """Nobody finds it any more; its pages that no slot holds."""
        del self._found[block.key]
        block.cached = False
        return block.pages[block.dropped] if block.keepers else block.pages


def keeps_outputs(tables: LayoutTables) -> bool:
    """Whether pages of generated positions can be cached beside those of prompts: both follow one
    rule, and all planes stay."""
    return tables.prompt == tables.decode and len(tables.kept) == tables.num_planes


def cached_text(tables: LayoutTables) -> str:
    """What a layout lets the cache hold, for reports."""
    if keeps_outputs(tables):
        return "prompts, and outputs that ran to full depth, until their pages are needed"
    if len(tables.kept) < tables.num_planes:
        return "prompts, while all their planes are there; the dropped ones count as free"
    return "prompts, until their pages are needed"


def chain_keys(
    root: bytes, tokens: I64, depths: I64 | None, page_size: int, loops: int
) -> list[bytes]:
    """Keys of the whole pages of `tokens` that follow a block (or start) of key `root`.

    depths int64, the KV depth of each token, None where all have `loops`. A key is a digest of
    the key before, the tokens, and the depths where one is not `loops`.
    """
    data, key, keys = tokens.tobytes(), root, []
    width = page_size * tokens.itemsize
    early = None if depths is None else depths != loops
    for start in range(0, len(tokens) - page_size + 1, page_size):
        at = start * tokens.itemsize
        text = key + data[at : at + width]
        if early is not None and depths is not None and early[start : start + page_size].any():
            # Longer by the depths: it cannot be taken for a page of tokens alone.
            text += depths[start : start + page_size].tobytes()
        key = blake2b(text, digest_size=16).digest()
        keys.append(key)
    return keys
