"""The fused steps of ticks in which a slot has several rows: its lanes (OpSpec op="lane_steps").

Position p of a slot is in lane p mod num. The rows from the slot's own position on are in flight:
the first of them, the front, has the right token, the others follow from guesses. What each step
does is what runtime.pipeline does in torch, to the bit; contract.steps has the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlt_core.contract.steps import Drawn, LeavingRows, RowSteps, RunningRows, SlotArrays

if TYPE_CHECKING:
    from torch import Tensor

# What one check of a guess, and one token without any, changes of a slot's trust. Guesses that do
# not pay are tried again so seldom that they cost a hundredth of the time (docs/log.md).
TRUST_NEWS, TRUST_REST = 0.05, 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneArrays:
    """A stage's arrays by lane and slot, changed in place.

    Home of lane i of a slot: base + slot * num + i. token, position, depth (loops taken), guess
    (the row's output as guessed, -1: none) int64 [homes]. ahead int64 [S + 1]: rows in flight.
    trust float32 [S + 1]: how often a slot's guesses held of late. unguessed bool [S + 1] or None:
    slots that nothing is guessed for. draft: loops after which an output is guessed; 0: never.
    """

    base: int
    num: int
    token: Tensor
    position: Tensor
    depth: Tensor
    guess: Tensor
    ahead: Tensor
    trust: Tensor
    unguessed: Tensor | None
    draft: int


class LaneSteps(RowSteps, Protocol):
    """The steps, in the order in which a tick runs them."""

    def enter(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        *,
        fan: int,
        first: int,
        parts: int,
        full: bool,
    ) -> RunningRows:
        """At most one row of each slot listed int64 [N] enters, the front or one behind; the others
        take their next loop. R = N * fan rows: all lanes, or each slot's front (fan 1, in which
        nothing follows). full: rows in front of the front go on to their slot's loops. Plane p of
        the track meant by page_row is row first + p * parts of a slot's tables."""
        ...

    def settle(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        rows: RunningRows,
        says: Tensor | None,
        tick: Tensor,
        *,
        fan: int,
        full: bool,
    ) -> tuple[Tensor, Tensor]:
        """Exits, as in DecodeSteps; a slot leaves once its front has been read."""
        ...

    def choose(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        listed: Tensor,
        tick: Tensor,
        least: Tensor,
        *,
        places: int,
        min_leave: int,
        guesses: bool,
    ) -> LeavingRows:
        """Rows for the head: in the first `places` rows the fronts that leave, as in DecodeSteps;
        then, with `guesses`, one row for each of the N slots listed: its newest, where its output
        is to be guessed, also if the slot's front leaves now and its token turns out to be the one
        that entered. least int64 of no dimension: thousandths of trust that a guess needs.
        `position` is the row's own; the noise of sampling belongs to the one behind it."""
        ...

    def read(
        self, state: Tensor, read_state: Tensor, slots: SlotArrays, rows: LeavingRows
    ) -> Tensor:
        """[L, W]: a row's entry of read_state [homes, W] where it has been read, else of state."""
        ...

    def advance(
        self,
        slots: SlotArrays,
        lanes: LaneArrays,
        leaving: LeavingRows,
        drawn: Drawn,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The next tokens of the L slots that leave: where the one that entered is right its row
        becomes the front, else all rows of the slot are dropped. (int64 [6 L + 5] as in
        DecodeSteps, the last count being of outputs read below their loops; drafts int64 [2, L]:
        1 where the guess held, 0 where it did not, -1 where none was checked, and the loops of
        rows that were dropped)."""
        ...

    def note(
        self, slots: SlotArrays, lanes: LaneArrays, rows: LeavingRows, token: Tensor, bad: Tensor
    ) -> None:
        """Keep the guesses int64 [N] of the chosen rows whose slot still runs; -1 for stop ids and
        for bad ones, bool [N]."""
        ...
