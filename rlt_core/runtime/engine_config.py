"""The sizes of one stage's engine."""

from __future__ import annotations

from dataclasses import dataclass

from rlt_core.kv.plan import CHUNK_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of one stage, all checked before anything is built.

    num_slots S, num_places P (prompt rows in progress: a cell needs its places for all its
    loops), chunk_size rows of a prompt chunk, page_size positions of a page (a power of two),
    num_pages in the pool (page 0 is the sentinel and counts), max_len positions of a request,
    max_depth loops, ticks_in_flight 1 or 2, debug: poison free pages and shuffle the free list.
    prefix_cache: written pages stay for later requests. swap_pages: pages of host memory for those
    of preempted requests. weight_bytes: the model's weights, 0 where nobody says.
    Rows that leave wait until min_leave of them do; at most leave_places a tick (0: no limit).
    """

    num_slots: int
    num_places: int
    chunk_size: int
    page_size: int
    num_pages: int
    max_len: int
    max_depth: int
    min_leave: int = 1
    leave_places: int = 0
    max_logprobs: int = 20
    ticks_in_flight: int = 2
    prefix_cache: bool = True
    swap_pages: int = 0
    weight_bytes: int = 0
    debug: bool = False
    keep_logits: bool = False

    @property
    def pages_per_row(self) -> int:
        """Entries of one page-table row."""
        return -(-self.max_len // self.page_size)

    @property
    def table_width(self) -> int:
        """Entries of a page-table row as it is kept: whole attention chunks."""
        per_chunk = max(1, CHUNK_KEYS // self.page_size)
        return -(-self.pages_per_row // per_chunk) * per_chunk
