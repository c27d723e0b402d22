"""A tick between its submission and its results."""

from __future__ import annotations

import msgspec

from rlt_core.runtime.batch import I64
from rlt_core.schedule.record import Record


class Flight(msgspec.Struct, kw_only=True, eq=False):
    """A tick that was submitted: who owned the slots then, and what its prompt rows answer.

    owner int64 [S]: SlotTable.owner, which changes with requests that end by themselves (they leave
    no outputs in flight) and is another array once a request lost its slot. score_slot,
    score_position int64 [X] or None: rows with a target, in the order of TickOutput's score arrays.
    scored: requests whose last scored row is in this tick. num_firsts: first outputs, from prompt
    rows.
    """

    tick: int
    owner: I64
    score_slot: I64 | None = None
    score_position: I64 | None = None
    scored: list[Record] = []
    num_firsts: int = 0
