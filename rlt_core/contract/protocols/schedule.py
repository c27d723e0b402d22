"""Host halves: how decode rows are admitted (Strategy), and prompts cut (PromptMode)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyView:
    """What a host half may look at; it never sees, and never names, a decode row's depth.

    num_lanes: rows of a request that may be in flight together (entry rule on_guess). row_cost:
    what a decode row adds to a tick, as a share of the tick without it, as far as memory traffic
    tells. trust: float32 [num_slots], how often a slot's guesses held of late (0 for empty slots);
    it changes from tick to tick. None: nothing is guessed.
    """

    num_slots: int
    num_free_slots: int
    num_decode_slots: int
    num_prompt_requests: int
    num_waiting: int
    max_tick_tokens: int
    num_lanes: int = 1
    row_cost: float = 0.0
    trust: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPlan:
    """How many waiting requests may be admitted now, and the rows a tick may hold.

    least_acceptance, where tokens are guessed: a request does so while at least this share of its
    recent guesses held; above 1 none does.
    """

    num_admissions: int
    prompt_rows: int
    decode_rows: int
    least_acceptance: float = 0.0


class Strategy(Protocol):
    def plan(self, view: StrategyView) -> StrategyPlan: ...


# Not frozen: one is made for every cell, and freezing doubles its cost.
@dataclass(slots=True, kw_only=True)
class PromptView:
    """One prompt in progress: `next_start` is the first position whose chunk has not begun; the
    newest chunk that runs has `running_len` rows (0: none runs) and has finished `running_depth`
    loops."""

    length: int
    next_start: int
    running_len: int
    running_depth: int
    loops: int
    by_position: bool


class PromptMode(Protocol):
    def chunk_len(self, view: PromptView, budget: int, chunk_size: int) -> int:
        """Rows of the next chunk of this prompt, at most `budget`; 0 when it must wait."""
        ...
