"""One tick's data: what the host sends (TickInput) and what comes back one tick late (TickOutput).

Homes: per-row arrays on the device have S + P + 1 entries: S slots (one per resident request),
P prompt places (rows of prompt chunks in progress keep their state there between ticks) and one
sentinel at the end for padding. A resident request owns one slot from admission to retirement:
its page tables, parameters and, once its prompt is done, its decode row.

The host never names a decode row's depth: it lists the slots that may advance; the device decides.

What is made anew in every tick is a msgspec struct, at a fifth of a dataclass's cost.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlt_core.runtime.mask_rows import MaskRows
from rlt_core.runtime.option_columns import OptionColumns

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
B8 = NDArray[np.bool_]

NUM_STOP_IDS = 16
NUM_BIAS = 512


def _row(index: int) -> property:
    return property(lambda self: self.columns[index])


def _int(index: int) -> property:
    return property(lambda self: self.ints[:, index])


def _float(index: int) -> property:
    return property(lambda self: self.floats[:, index])


NUM_INTS, NUM_FLOATS = 14 + NUM_STOP_IDS, 7
TRUST = 6  # of floats: set when the request gets its slot


class SlotParams(msgspec.Struct, kw_only=True, eq=False):
    """The parameters of A requests that take slots in this tick, a row a request.

    ints: int64 [A, NUM_INTS], floats: float32 [A, NUM_FLOATS], with the columns named below.
    bias_ids int64, bias_values float32 [A, NUM_BIAS], -1 unused; None when no request has any.
    trace: int32 [A, max_len] depths by output index, or None when the policy has none.
    params: one float32 [A] per scalar policy parameter. prompt_tokens: the prompts, needed
    only when penalties are used (int64, ragged, one array a request). output_tokens: those already
    generated (resume after preemption), for the counts. options: None for a model without any.
    """

    ints: I64
    floats: F32
    params: dict[str, F32]
    trace: I32 | None
    prompt_tokens: list[I64]
    output_tokens: list[I32]
    bias_ids: I64 | None = None
    bias_values: F32 | None = None
    options: OptionColumns | None = None

    slot = _int(0)
    seed = _int(1)
    state_seed = _int(2)
    loops = _int(3)
    min_loops = _int(4)
    max_loops = _int(5)
    prompt_len = _int(6)
    max_tokens = _int(7)
    max_position = _int(8)  # positions the request may fill: the length limit
    top_k = _int(9)
    num_logprobs = _int(10)
    use_policy = property(lambda self: self.ints[:, 11] != 0)  # False: it asked for `fixed`
    uses_penalties = property(lambda self: self.ints[:, 12] != 0)
    masked = property(lambda self: self.ints[:, 13] != 0)  # its tokens are drawn under masks
    stop_ids = property(lambda self: self.ints[:, 14:])  # [A, NUM_STOP_IDS], -1 unused
    temperature = _float(0)
    top_p = _float(1)
    min_p = _float(2)
    repetition_penalty = _float(3)
    presence_penalty = _float(4)
    frequency_penalty = _float(5)
    trust = _float(TRUST)  # how often its guesses are expected to hold


# Rows of PromptRows.columns.
(
    PLACE,
    SLOT,
    TOKEN,
    POSITION,
    EXIT_AT,
    RULE,
    EMIT,
    KNOWN_NEXT,
    TARGET,
    FIRST_TICK,
    LAST_TICK,
    NUM_PROMPT_COLUMNS,
) = range(12)


class PromptRows(msgspec.Struct, kw_only=True, eq=False):
    """P' rows of prompt and forced cells in this tick, whole cells one after the other.

    columns: int64 [NUM_PROMPT_COLUMNS, P'], all fields of all rows, for one copy to the device.
    cell_start: int64 [C + 1], offsets of the cells in the rows.
    depth: the loop that this tick runs for the row's cell, from 1.
    exit_at: the depth the row leaves at (read-out depth in mode full); 0: by the policy.
    rule: 0 prompt positions, 1 generated positions (LayoutTables.prompt / .decode).
    last: this is the cell's last loop: coda runs for all its rows, then the flags below count.
    emit: the row's logits give the request's next token, which enters the slot.
    known_next: the token that enters the slot when it is already known (resume), else -1.
    target: the token whose logprob at this row is wanted (score, prompt logprobs), else -1.
    """

    tick: int
    columns: I64
    cell_start: I64

    place = _row(PLACE)
    slot = _row(SLOT)
    token = _row(TOKEN)
    position = _row(POSITION)
    exit_at = _row(EXIT_AT)
    rule = _row(RULE)
    known_next = _row(KNOWN_NEXT)
    target = _row(TARGET)
    emit = property(lambda self: self.columns[EMIT] != 0)
    depth = property(lambda self: self.tick + 1 - self.columns[FIRST_TICK])
    last = property(lambda self: self.columns[LAST_TICK] == self.tick)

    def __len__(self) -> int:
        return int(self.columns.shape[1])


# Of a tick without cells: as there is no row, its tick does not matter.
NO_ROWS = PromptRows(
    tick=0,
    columns=np.zeros((NUM_PROMPT_COLUMNS, 0), np.int64),
    cell_start=np.zeros(1, np.int64),
)


class PageCopy(msgspec.Struct, kw_only=True, eq=False):
    """pages int32 [N] of the pool and host int64 [N] of the swap space, one for the other."""

    pages: I32
    host: I64


class Resumed(msgspec.Struct, kw_only=True, eq=False):
    """A preempted request whose pages come back from the host: its slot goes on when they are
    there, with its last output, `token`, at `position`."""

    slot: int
    token: int
    position: int
    copy: PageCopy


class TickInput(msgspec.Struct, kw_only=True, eq=False):
    """Everything the host decides for one tick."""

    tick: int
    decode_slots: I64  # slots that may advance (parked ones may be among them)
    page_limit: I32  # [S]: a row whose next position reaches it parks
    admitted: SlotParams | None
    cleared: I64  # slots whose request ended, was aborted or preempted: emptied, tables and all
    # page-table changes, after that: flat index into [S, table rows, table_width], and the page
    table_at: I64
    table_page: I32
    freed_pages: I32  # pages freed since the last tick (poisoned in debug mode)
    prompt: PromptRows
    num_chunks: int  # chunks of 128 keys that cover the longest row of this tick
    # Thousandths of StrategyPlan.least_acceptance; above 1000 slots have one row in this tick.
    least_acceptance: int = 0
    masks: MaskRows | None = None  # those that came since the last tick
    # pages to be copied to the host, before anything of this tick; and those that come back
    swapped_out: list[PageCopy] = []
    resumed: list[Resumed] = []


# Rows of TickOutput.columns; the logprob as the bits of a float64.
EVENT_SLOT, EVENT_TOKEN, EVENT_DEPTH, EVENT_RANK, EVENT_FINISH, EVENT_LOGPROB = range(6)
NUM_EVENT_COLUMNS = 6


def logprob_bits(logprob: F32) -> I64:
    """The row of TickOutput.columns or Events.columns for float32 logprobs."""
    return logprob.astype(np.float64).view(np.int64)


def bits_logprob(row: I64) -> F32:
    """The float32 logprobs in a row of columns."""
    return row.view(np.float64).astype(np.float32)


class TickOutput(msgspec.Struct, kw_only=True, eq=False):
    """What a tick gave. Places without an event have slot -1.

    columns: int64 [NUM_EVENT_COLUMNS, E], one copy from the device.
    finish: 0 goes on, 1 stop id, 2 length, 3 the logits were not finite (the request fails).
    scores are for prompt rows with a target: logprob float32, rank and read-out depth.
    drafts: int64 [2, E], where tokens are guessed: 1 or 0 as the guess that had entered held or
    not, -1 for none; loops of the rows that were dropped.
    logits (float32 [E, V] at the event places) only when the engine keeps them for tests.
    """

    tick: int
    columns: I64
    top_ids: I64 | None = None
    top_logprobs: F32 | None = None
    score_depth: I64 | None = None
    score_logprob: F32 | None = None
    score_rank: I64 | None = None
    score_top_ids: I64 | None = None
    score_top_logprobs: F32 | None = None
    drafts: I64 | None = None
    logits: F32 | None = None
    score_logits: F32 | None = None
    # [rows that ran a loop, rows that wait (parked), lowest depth, highest depth, left early]
    counts: I64 = msgspec.field(default_factory=lambda: np.zeros(5, np.int64))

    slot = _row(EVENT_SLOT)
    token = _row(EVENT_TOKEN)
    depth = _row(EVENT_DEPTH)
    rank = _row(EVENT_RANK)
    finish = _row(EVENT_FINISH)
    logprob = property(lambda self: bits_logprob(self.columns[EVENT_LOGPROB]))
