"""The stats of a stage, from what its residency holds and has counted."""

from __future__ import annotations

from rlt_core.schedule.residency import Residency
from rlt_core.schedule.stats import EngineStats, at_least


def engine_stats(residency: Residency) -> EngineStats:
    """Gauges and counters; row_loops are those of prompt rows alone."""
    counts, pages = residency.all_counts(), residency.pages
    num_slots = residency.config.num_slots
    return EngineStats(
        slots_used=num_slots - len(residency.table.free),
        num_slots=num_slots,
        num_prompts=residency.num_prompts,
        num_waiting=residency.waiting.num + residency.sharing.num_aside,
        pages_used=pages.num_usable - pages.num_free,
        pages_free=pages.num_free,
        pages_total=pages.num_usable,
        pages_cached=pages.cache.num_idle,
        cache_queries=counts.cache_queries,
        cache_hits=counts.cache_hits,
        cached_positions=counts.cached_positions,
        swapped_out=residency.swapping.num_out,
        swapped_in=residency.swapping.num_back,
        ticks=counts.ticks,
        preemptions=counts.preemptions,
        aborts=counts.aborts_waiting
        + counts.aborts_prompt
        + counts.aborts_decode
        + counts.aborts_preempted,
        row_loops=at_least(residency.cell_loops),
        queue_counts=list(residency.queue_times.counts),
        queue_seconds=residency.queue_times.seconds,
        guesses_checked=counts.guesses_checked,
        guesses_held=counts.guesses_held,
        wasted_loops=counts.wasted_loops,
    )
