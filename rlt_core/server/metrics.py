"""Prometheus metrics: what requests went through, and how the stage is.

Names are those that vLLM's dashboards know, with the prefix `rlt:`, and loops in addition.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from rlt_core.api.inbox import StreamTimes
from rlt_core.api.outputs import Increment
from rlt_core.schedule.stats import EngineStats
from rlt_core.server.stage_metrics import StageMetrics

_LONG_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5)


class ServerMetrics:
    """The metrics of one application, with a registry of their own. Fits api.observer.Observer."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._stage = StageMetrics(model)
        self._registry.register(self._stage)
        self._model = model
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests")
        self._tokens = self._counter("generation_tokens", "Tokens generated")
        self._first = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _LONG_S
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer", _SHORT_S
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Mean of a request's tokens after the first", _SHORT_S
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end", _LONG_S
        )
        self._ended = self._many("request_success", "Answers ended", "finished_reason")
        self._refused = self._many("requests_refused", "Requests not accepted", "reason")
        self._http = self._many("http_requests", "Answers by HTTP", "path", "method", "status")

    def sent(self, num_prompt_tokens: int) -> None:
        """A request was accepted."""
        self._prompt_tokens.inc(num_prompt_tokens)

    def grew(self, times: StreamTimes, increment: Increment, seconds: float | None) -> None:
        """An answer has new tokens."""
        num_new = len(increment.token_ids)
        self._tokens.inc(num_new)
        if times.num_tokens == num_new:
            self._first.observe(times.first_token - times.arrived)
        if seconds is not None:
            for _ in range(num_new):
                self._between.observe(seconds / num_new)

    def ended(self, times: StreamTimes, reasons: Sequence[str]) -> None:
        """A request ended."""
        for reason in reasons:
            self._ended.labels(self._model, reason).inc()
        self._whole.observe(times.ended - times.arrived)
        # Siblings run side by side: the tokens of one are what takes the time.
        num_later = times.num_tokens / max(1, len(times.last_tokens)) - 1
        if num_later > 0:
            last = max(times.last_tokens.values())
            self._per_token.observe((last - times.first_token) / num_later)

    def refused(self, reason: str) -> None:
        """A request was not accepted."""
        self._refused.labels(self._model, reason).inc()

    def answered(self, path: str, method: str, status: int) -> None:
        """An HTTP request was answered; `path` is its route's, so that their number is bounded."""
        self._http.labels(self._model, path, method, str(status)).inc()

    def render(self, stats: EngineStats, *, ready: bool, num_restarts: int) -> bytes:
        """The text of /metrics."""
        self._stage.take(stats, ready=ready, num_restarts=num_restarts)
        return generate_latest(self._registry)

    def _many(self, name: str, text: str, *labels: str) -> Counter:
        names = ("model_name", *labels)
        return Counter(f"rlt:{name}", text, names, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return self._many(name, text).labels(self._model)

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        made = Histogram(
            f"rlt:{name}", text, ("model_name",), registry=self._registry, buckets=bounds
        )
        return made.labels(self._model)
