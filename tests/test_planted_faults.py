"""The equality matrix sees the faults it is for: each one planted makes the comparison fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.matrix import check_meaning
from tests.pairwise import Row
from tests.planted import (
    FAULTS,
    Fault,
    depth_off_by_one,
    fill_omitted,
    gate_on_the_unnormed_state,
    wrong_plane,
)
from tests.recording import FAULT
from tests.selection import mostly_slow

MEANING: Row = {
    "model": "ouro_a",
    "layout": "last_exited",
    "mode": "skip",
    "policy": "gate",
    "dtype": "float32",
}
SCHEDULE: Row = {
    "strategy": "refill",
    "chunk_size": 7,
    "page_size": 4,
    "num_slots": 3,
    "num_places": 64,
    "pool": "large",
    "ticks_in_flight": 2,
    "aborts": False,
    "leave": (1, 0),
}
SEED = 7  # one workload that shows all of the faults


def test_nothing_is_seen_without_a_fault() -> None:
    """The control: the same workload is equal when nothing is planted."""
    (verdict,) = check_meaning([{**MEANING, **SCHEDULE}], SEED)
    assert verdict.wrong == ()


@pytest.mark.parametrize(
    "fault",
    mostly_slow(FAULTS, wrong_plane, fill_omitted, depth_off_by_one, gate_on_the_unnormed_state),
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_seen(
    fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    """A comparison that passes with the fault in place guards nothing."""
    with pytest.MonkeyPatch.context() as patch:
        model = fault(patch)
        (verdict,) = check_meaning([{**MEANING, **SCHEDULE}], SEED, model)
    print(*verdict.wrong[:3], sep="\n")
    assert verdict.wrong
    seen = verdict.wrong[0].split(": ")[-1][:60]
    record_property(FAULT, {"fault": fault.__name__, "seen as": seen})
