"""Spans of requests: where they go, whose children they are, and what is in none of them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fastapi import Request
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rlt_core.contract.errors import RltError
from rlt_core.server.app import create_app
from rlt_core.server.context import note
from rlt_core.server.tracing import NoTracer, OtelTracer, make_tracer
from tests.app_kit import client_of, run, scripted, settings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of an application made meanwhile end up."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OtelTracer(provider.get_tracer("rlt"))
    monkeypatch.setattr("rlt_core.server.app.make_tracer", lambda endpoint: tracer)
    return exporter


def test_a_request_is_a_span(spans: InMemorySpanExporter) -> None:
    """Spans had no parent, one name for each path, or held what users wrote."""

    async def scene() -> None:
        app = create_app(scripted(), settings())

        @app.post("/items/{name}")
        async def item(name: str, request: Request) -> None:
            note(request, completion_tokens=7, mean_depth=2.5)

        @app.post("/fault")
        async def fault() -> None:
            raise ValueError("what the user wrote")

        async with client_of(app) as client:
            await client.post("/items/a", headers={"traceparent": PARENT, "X-Request-Id": "mine"})
            await client.post("/fault", content="what the user wrote")

    run(scene())
    good, bad = spans.get_finished_spans()
    assert good.name == "POST /items/{name}"
    assert good.parent is not None
    assert f"{good.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert _of(good, "http.response.status_code") == 200
    assert _of(good, "rlt.request_id") == "mine"
    assert (_of(good, "rlt.completion_tokens"), _of(good, "rlt.mean_depth")) == (7, 2.5)
    assert _of(bad, "http.response.status_code") == 500
    assert "what the user wrote" not in bad.to_json()


def _of(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


def test_without_an_endpoint_nothing_is_traced() -> None:
    """The library was needed by those who trace nothing."""
    assert isinstance(make_tracer(None), NoTracer)
    assert isinstance(make_tracer("http://127.0.0.1:1/v1/traces"), OtelTracer)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without the library was ignored, or a traceback."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RltError, match=r"rlt-core\[otel\]"):
        make_tracer("http://127.0.0.1:1")
