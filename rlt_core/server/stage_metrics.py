"""What a stage says of itself, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rlt_core.schedule.stats import QUEUE_BOUNDS_S, EngineStats

_GAUGES = {
    "num_requests_running": ("slots_used", "Requests with a slot"),
    "num_requests_waiting": ("num_waiting", "Requests without a slot"),
    "num_prompts_in_progress": ("num_prompts", "Requests with a slot whose prompt is in progress"),
    "slots": ("num_slots", "Slots"),
    "pages": ("pages_total", "Pages of the KV pool"),
    "pages_used": ("pages_used", "Pages of the KV pool in use"),
    "pages_free": ("pages_free", "Pages of the KV pool that are free"),
    "pages_cached": ("pages_cached", "Pages that only the prefix cache holds"),
}
_COUNTERS = {
    "ticks": ("ticks", "Ticks submitted"),
    "num_preemptions": ("preemptions", "Requests that lost their slot for a while"),
    "aborts": ("aborts", "Requests aborted"),
    "prefix_cache_queries": ("cache_queries", "Prompts looked up in the prefix cache"),
    "prefix_cache_hits": ("cache_hits", "Prompts found there, in part"),
    "prefix_cached_positions": ("cached_positions", "Positions taken from the prefix cache"),
    "pages_swapped_out": ("swapped_out", "Pages moved to host memory"),
    "pages_swapped_in": ("swapped_in", "Pages moved back"),
    "spec_decode_num_draft_tokens": ("guesses_checked", "Guessed tokens that were checked"),
    "spec_decode_num_accepted_tokens": ("guesses_held", "Guessed tokens that were right"),
    "wasted_row_loops": ("wasted_loops", "Loops of rows behind a guess that was wrong"),
}


class StageMetrics(Collector):
    """Fits a CollectorRegistry; shows the stats that it was given last. Counters begin anew when a
    stage is started again, which rate() allows for."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._stats = EngineStats()
        self._ready, self._num_restarts = False, 0

    def take(self, stats: EngineStats, *, ready: bool, num_restarts: int) -> None:
        """What the next `collect` shows."""
        self._stats, self._ready, self._num_restarts = stats, ready, num_restarts

    def collect(self) -> Iterator[Metric]:
        """All families; called by the registry."""
        stats = self._stats
        yield self._gauge("ready", "Whether a stage serves", float(self._ready))
        usage = stats.pages_used / stats.pages_total if stats.pages_total else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pool in use, 0 to 1", usage)
        for name, (field, text) in _GAUGES.items():
            yield self._gauge(name, text, getattr(stats, field))
        for name, (field, text) in _COUNTERS.items():
            yield self._counter(name, text, getattr(stats, field))
        yield self._counter("stage_restarts", "Stages beyond the first", self._num_restarts)
        yield self._row_loops()
        yield self._depths()
        yield self._queue_times()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"rlt:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"rlt:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _row_loops(self) -> Metric:
        labels = ["model_name", "depth"]
        text = "Loops of rows by depth, of prompts and answers; over ticks: rows per tick"
        family = CounterMetricFamily("rlt:row_loops", text, labels=labels)
        for depth, count in enumerate(self._stats.row_loops, 1):
            family.add_metric([self._model, str(depth)], count)
        return family

    def _depths(self) -> Metric:
        """Outputs by exit depth, a bucket a depth."""
        outputs = self._stats.outputs
        total = sum(depth * count for depth, count in enumerate(outputs, 1))
        return self._histogram(
            "exit_depth",
            "Loops that outputs were read after",
            range(1, len(outputs) + 1),
            [*outputs, 0],
            total,
        )

    def _queue_times(self) -> Metric:
        counts = self._stats.queue_counts or [0] * (len(QUEUE_BOUNDS_S) + 1)
        return self._histogram(
            "request_queue_time_seconds",
            "From arrival at the stage to the first slot",
            QUEUE_BOUNDS_S,
            counts,
            self._stats.queue_seconds,
        )

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> Metric:
        """counts: one more than bounds; the last are those above all of them."""
        family = HistogramMetricFamily(f"rlt:{name}", text, labels=["model_name"])
        ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(counts), strict=True))
        family.add_metric([self._model], buckets, total)
        return family
