"""The core's prompt modes."""

from __future__ import annotations

from rlt_core.contract.protocols import PromptView


class Chunked:
    """One chunk of a prompt at a time: all its loops, then the next chunk."""

    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        """A whole chunk or nothing, so that a prompt is not cut into crumbs when places are
        scarce; 0 while the last chunk runs."""
        return 0 if view.running_len else _whole_chunk(view, budget, chunk_size)


class Wavefront:
    """A chunk begins as soon as the one before it has a loop behind it, so that a prompt's chunks
    run at different depths beside each other: with places for all, P positions in chunks of C
    take ceil(P / C) + D - 1 ticks, not D ceil(P / C)."""

    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        """A whole chunk or nothing; 0 while the newest has not finished its first loop."""
        if view.running_len and not view.running_depth:
            return 0
        return _whole_chunk(view, budget, chunk_size)


def _whole_chunk(view: PromptView, budget: int, chunk_size: int) -> int:
    wanted = view.length - view.next_start
    if view.by_position:
        wanted = 1
    elif wanted > chunk_size:
        wanted = chunk_size
    return wanted if wanted <= budget else 0
