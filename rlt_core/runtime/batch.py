"""One tick's data: what the host sends (TickInput) and what comes back one tick late (TickOutput).

Homes: per-row arrays on the device have S + P + 1 entries: S slots (one per resident request),
P prompt places (rows of prompt chunks in progress keep their state there between ticks) and one
sentinel at the end for padding. A resident request owns one slot from admission to retirement:
its page tables, parameters and, once its prompt is done, its decode row.

The host never names a decode row's depth: it lists the slots that may advance; the device decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
B8 = NDArray[np.bool_]

NUM_STOP_IDS = 16
NUM_BIAS = 512


@dataclass(slots=True, kw_only=True)
class SlotParams:
    """The parameters of A requests that take slots in this tick (struct of arrays, A first).

    trace: int32 [A, max_len] depths by output index, or None when the policy has none.
    params: one float32 [A] per scalar policy parameter. prompt_tokens: the prompts, needed
    only when penalties are used (int64, ragged, one array a request).
    """

    slot: I64
    loops: I32
    min_loops: I32
    max_loops: I32
    use_policy: B8  # False: the request asked for `fixed`
    prompt_len: I32
    max_tokens: I32
    max_position: I32  # positions the request may fill: the length limit
    stop_ids: I64  # [A, NUM_STOP_IDS], -1 unused
    seed: I64
    state_seed: I64
    temperature: F32
    top_p: F32
    min_p: F32
    repetition_penalty: F32
    presence_penalty: F32
    frequency_penalty: F32
    top_k: I32
    num_logprobs: I32
    bias_ids: I64 | None  # [A, NUM_BIAS], -1 unused; None when no request of the tick has any
    bias_values: F32 | None
    uses_penalties: B8
    params: dict[str, F32]
    trace: I32 | None
    prompt_tokens: list[I64]
    output_tokens: list[I64]  # already generated (resume after preemption), for the counts


@dataclass(slots=True, kw_only=True)
class PromptRows:
    """P' rows of prompt and forced cells in this tick, whole cells one after the other.

    cell_start: int64 [C + 1], offsets of the cells in the rows.
    depth: the loop that this tick runs for the row's cell, from 1.
    exit_at: the depth the row leaves at (read-out depth in mode full); 0: by the policy.
    rule: 0 prompt positions, 1 generated positions (LayoutTables.prompt / .decode).
    last: this is the cell's last loop: coda runs for all its rows, then the flags below count.
    emit: the row's logits give the request's next token, which enters the slot.
    known_next: the token that enters the slot when it is already known (resume), else -1.
    target: the token whose logprob at this row is wanted (score, prompt logprobs), else -1.
    """

    place: I64
    slot: I64
    token: I64
    position: I64
    depth: I64
    exit_at: I64
    rule: I64
    last: B8
    emit: B8
    known_next: I64
    target: I64
    cell_start: I64

    def __len__(self) -> int:
        return len(self.place)


@dataclass(slots=True, kw_only=True)
class TickInput:
    """Everything the host decides for one tick."""

    tick: int
    decode_slots: I64  # slots that may advance (parked ones may be among them)
    page_limit: I32  # [S]: a row whose next position reaches it parks
    admitted: SlotParams | None
    cleared: I64  # slots whose request ended, was aborted or preempted: emptied first
    # page-table changes: table[slot, plane_row, page_index] = page
    table_slot: I64
    table_row: I64
    table_index: I64
    table_page: I64
    freed_pages: I64  # pages freed since the last tick (poisoned in debug mode)
    prompt: PromptRows
    num_chunks: int  # chunks of 128 keys that cover the longest row of this tick


@dataclass(slots=True, kw_only=True)
class TickOutput:
    """What a tick gave. Places without an event have slot -1.

    finish: 0 goes on, 1 stop id, 2 length, 3 the logits were not finite (the request fails).
    scores are for prompt rows with a target: logprob float32, rank and read-out depth.
    logits (float32 [E, V] at the event places) only when the engine keeps them for tests.
    """

    tick: int
    slot: I64
    token: I64
    depth: I64
    logprob: F32
    rank: I64
    finish: I64
    top_ids: I64 | None = None
    top_logprobs: F32 | None = None
    score_depth: I64 | None = None
    score_logprob: F32 | None = None
    score_rank: I64 | None = None
    score_top_ids: I64 | None = None
    score_top_logprobs: F32 | None = None
    logits: F32 | None = None
    score_logits: F32 | None = None
    # [rows that ran a loop, rows that wait (parked), lowest depth, highest depth, left early]
    counts: I64 = field(default_factory=lambda: np.zeros(5, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of one stage, all checked before anything is built.

    num_slots S, num_places P (prompt rows in progress: a cell needs its places for all its
    loops), chunk_size rows of a prompt chunk, page_size positions of a page (divides 128),
    num_pages in the pool (page 0 is the sentinel and counts), max_len positions of a request,
    max_depth loops, ticks_in_flight 1 or 2, debug: poison free pages and shuffle the free list.
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
    debug: bool = False
    keep_logits: bool = False

    @property
    def pages_per_row(self) -> int:
        """Entries of one page-table row."""
        return -(-self.max_len // self.page_size)
