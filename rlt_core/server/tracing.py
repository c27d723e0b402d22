"""Spans for OpenTelemetry, where it is installed and an endpoint is given; else nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from rlt_core.contract.errors import RltError
from rlt_core.server.asgi import Scope, header_values


class Span(Protocol):
    """One request's."""

    def ended(self, route: str, status: int, fields: Mapping[str, Any]) -> None:
        """What is known at its end; `fields` are those of the access log."""
        ...


class Tracer(Protocol):
    """Makes a span of each request."""

    def span(self, scope: Scope, request_id: str) -> AbstractContextManager[Span]: ...


class NoTracer:
    """Makes none."""

    def span(self, scope: Scope, request_id: str) -> AbstractContextManager[Span]:
        """A span that goes nowhere."""
        return nullcontext(_NoSpan())


class _NoSpan:
    def ended(self, route: str, status: int, fields: Mapping[str, Any]) -> None: ...


def make_tracer(endpoint: str | None) -> Tracer:
    """A tracer that sends to an OTLP endpoint over HTTP. RltError where the library is missing."""
    if endpoint is None:
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RltError(
            f"--otlp-endpoint {endpoint}: OpenTelemetry is not installed ({error.name})\n"
            "Fix: pip install 'rlt-core[otel]'"
        ) from error
    # A provider of its own: what other libraries trace is not sent along.
    provider = TracerProvider(resource=Resource.create({"service.name": "rlt"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OtelTracer(provider.get_tracer("rlt"))


class OtelTracer:
    """Spans of kind server, children of the caller's `traceparent`."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    @contextmanager
    def span(self, scope: Scope, request_id: str) -> Iterator[Span]:
        """The request's span, current while it runs. Faults are not recorded: their text may hold
        parts of a prompt."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        given = header_values(scope, b"traceparent")
        headers = {"traceparent": given[0].decode("latin-1")} if given else {}
        parent = TraceContextTextMapPropagator().extract(headers)
        with self._tracer.start_as_current_span(
            scope["method"],
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "rlt.request_id": request_id},
            record_exception=False,
        ) as span:
            yield OtelSpan(span, scope["method"])


class OtelSpan:
    """A span of the library."""

    def __init__(self, span: Any, method: str) -> None:
        self._span, self._method = span, method

    def ended(self, route: str, status: int, fields: Mapping[str, Any]) -> None:
        """Route, status and the counts of the access log."""
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        for name, value in fields.items():
            if isinstance(value, (bool, int, float, str)):
                self._span.set_attribute(f"rlt.{name}", value)
