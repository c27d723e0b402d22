"""One live request on the host: where it stands and what must survive a preemption."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from rlt_core.runtime.batch import F32, I32, I64
from rlt_core.schedule.forced import Forced
from rlt_core.schedule.request import EngineRequest

if TYPE_CHECKING:
    from rlt_core.schedule.prompt_cells import Cell


@dataclass(frozen=True, slots=True)
class Swapped:
    """Host pages int64 [table rows, columns] with what a request's page table held."""

    pages: I64


class State(IntEnum):
    """Where a request stands. GONE: finished, failed or aborted; nothing more comes of it."""

    WAITING = 0
    PROMPT = 1
    DECODE = 2
    PREEMPTED = 3
    GONE = 4


# `State.X` runs Python code of `enum` each time; what every tick asks uses these.
WAITING, PROMPT, DECODE, PREEMPTED, GONE = State

_NONE: I32 = np.zeros(0, np.int32)


def _none() -> I32:
    return _NONE


@dataclass(slots=True, kw_only=True, eq=False)
class Record:
    """A request and its state.

    serial: arrival number, never used again. rank: who goes first (schedule.ageing), then the
    earlier arrival. max_position: positions it may fill, the last output's included.
    need: positions whose KV it may ever hold. pages_prompt, pages_kept: pages that one page of
    positions takes before and after the prompt. tokens, depths, moved: the outputs and the tick
    of the last advance, up to date only while the request does not decode (the slot's arrays hold
    them then). num_scored: prompt positions whose logprob was given. not_before: the tick whose
    results must be in before it may get a slot again. params: its rows of SlotParams. chains: its
    positions read the state of the one before. tables: places of its tables, by option. mask,
    mask_index: its latest mask and the output that it is for. next_start: the first known position
    whose cell has not begun; newest: the cell that began last, while it runs.
    arrived: time.perf_counter() when it came.
    keys: of the prefix cache, for the whole pages of its known positions, once somebody asked.
    aside: the key of a block that it waits for, without standing in the queue. swapped: its pages,
    while it is preempted and they wait in host memory.
    """

    request: EngineRequest
    serial: int
    rank: tuple[int, int]
    max_position: int
    need: int
    pages_prompt: int
    pages_kept: int
    params: tuple[I64, F32]
    state: State = State.WAITING
    slot: int = -1
    tokens: I32 = field(default_factory=_none)
    depths: I32 = field(default_factory=_none)
    num_scored: int = 0
    not_before: int = -1
    moved: int = 0
    forced: Forced | None = None
    next_start: int = 0
    newest: Cell | None = None
    chains: bool = False
    tables: dict[str, int] | None = None
    arrived: float = field(default_factory=time.perf_counter)
    mask: I32 | None = None
    mask_index: int = 0
    keys: list[bytes] | None = None
    aside: bytes | None = None
    swapped: Swapped | None = None
    num_preempted: int = 0

    @property
    def resident(self) -> bool:
        """Whether it holds a slot and pages."""
        return self.slot >= 0

    def cover(self, forced: Forced) -> int:
        """Positions that get pages at admission: all forced ones and the next input's.

        Where planes are dropped after the prompt, the prompt's alone.
        """
        if forced.rules.drops and forced.border and self.swapped is None:
            return min(forced.border, self.need)
        positions = forced.border + (len(self.tokens) or 1)
        return self.need if positions > self.need or self.request.kind == "score" else positions
