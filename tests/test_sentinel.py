"""Padding never accumulates: the sentinel slot stays where it was, however long a stage runs."""

from __future__ import annotations

from tests.engines import Setup, build, greedy, run_together


def test_sentinel_slot_stands_still() -> None:
    """Empty leaving places wrote the sentinel's next position; after max_len ticks the stage died
    with an index error in the rope table."""
    setup = Setup(model="ouro_b", max_len=16, chunk_size=4, num_slots=2, policy="fixed")
    built = build(setup)
    for start in range(0, 12, 4):
        run_together(built, [greedy(start + i, [3, 5, 7, 9], 3, setup) for i in range(4)])
    slots = built.executor.slots
    assert built.engine.counts.ticks > setup.max_len
    assert int(slots.position[slots.sentinel]) == 0
    assert int(slots.phase[slots.sentinel]) == 0
