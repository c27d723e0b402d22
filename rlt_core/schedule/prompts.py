"""The core's prompt mode."""

from __future__ import annotations

from rlt_core.contract.protocols import PromptView


class Chunked:
    """One chunk of a prompt at a time: all its loops, then the next chunk."""

    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        """A whole chunk or nothing, so that a prompt is not cut into crumbs when places are
        scarce; 0 while the last chunk runs."""
        if view.running_len:
            return 0
        left = view.length - view.next_start
        wanted = 1 if view.by_position else min(left, chunk_size)
        return wanted if wanted <= budget else 0
