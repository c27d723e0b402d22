"""What a stage counts: gauges that come back to zero, loops by depth, times in the queue."""

from __future__ import annotations

import numpy as np
import pytest

from rlt_core.api.sampling_params import SamplingParams
from rlt_core.runtime.batch import logprob_bits
from rlt_core.schedule.request import Events
from rlt_core.schedule.stats import QUEUE_BOUNDS_S, EngineStats, OutputDepths, QueueTimes, at_least
from rlt_core.stage.messages import GetStats, Stats, decode_answer, decode_request, encode
from tests.app_kit import run
from tests.test_cancellation import demo, prompt


def test_stats_travel() -> None:
    """A list, or a field, was lost on the wire."""
    stats = EngineStats(slots_used=3, row_loops=[5, 2], queue_counts=[1], queue_seconds=0.5)
    assert decode_answer(encode(Stats(number=7, stats=stats))) == Stats(number=7, stats=stats)
    assert decode_request(encode(GetStats(number=7))) == GetStats(number=7)


def test_row_loops_of_rows_that_ended_early() -> None:
    """A row that left at depth e was counted at depth e alone, or at all of them."""
    assert at_least([4, 0, 1]) == [5, 1, 1]
    assert at_least([0]) == [0]


def test_entries_without_a_token_are_no_outputs() -> None:
    """Aborts and ends of scores were counted as outputs."""
    depths = OutputDepths(4)
    columns = np.zeros((6, 4), np.int64)
    columns[1], columns[2] = [5, -1, 6, 7], [2, 0, 4, 2]
    columns[5] = logprob_bits(np.zeros(4, np.float32))
    depths.count(Events(tick=0, columns=columns))
    depths.count(Events(tick=1, columns=columns[:, :1]))
    assert depths.outputs == [0, 3, 0, 1]


def test_queue_times_fall_into_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time on a bound, or beyond the last one, was in no bucket."""
    times = QueueTimes()
    monkeypatch.setattr("rlt_core.schedule.stats.time.perf_counter", lambda: 1000.0)
    for seconds in (0.0, QUEUE_BOUNDS_S[0], 0.3, 999.0):
        times.ended(1000.0 - seconds)
    assert times.counts[0] == 2
    assert times.counts[3] == 1
    assert times.counts[-1] == 1
    assert sum(times.counts) == 4
    assert times.seconds == pytest.approx(999.305)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["skip", "full"])
def test_the_engine_counts_what_it_ran(mode: str) -> None:
    """Loops of prompt rows were missing, or counted twice when a prompt came in chunks; in mode
    full an output at depth 1 was counted as one loop. Gauges did not come back to zero."""

    async def scene() -> None:
        async with demo(exit_mode=mode, max_num_seqs=2) as llm:
            params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0)
            answers = [await llm.generate(prompt(length), params) for length in (3, 40)]
            stats = await llm.stats()
        depths = [d for answer in answers for d in answer.outputs[0].exit_depths]
        assert len(set(depths)) > 1
        assert stats.outputs == [depths.count(depth) for depth in (1, 2, 3, 4)]
        # The first output is the prompt's last row: its loops are those of the prompt.
        rows = [43 + 38] * 4
        if mode == "skip":
            later = [d for answer in answers for d in answer.outputs[0].exit_depths[1:]]
            rows = [43 + sum(d >= depth for d in later) for depth in (1, 2, 3, 4)]
        assert stats.row_loops == rows
        assert (stats.slots_used, stats.num_waiting, stats.num_prompts) == (0, 0, 0)
        assert (stats.pages_used, stats.pages_free) == (0, stats.pages_total)
        assert sum(stats.queue_counts) == 2
        assert stats.ticks >= 40

    run(scene())
