"""The HTTP application: health, errors, ids, logs, metrics, and what ends with a client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from prometheus_client.parser import text_string_to_metric_families

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import (
    BusyError,
    CheckpointError,
    DeadlineError,
    OptionError,
    RequestError,
    RltError,
    StageError,
)
from rlt_core.server.app import create_app
from rlt_core.server.context import context_of, note
from rlt_core.server.disconnect import while_connected
from rlt_core.server.settings import ServerSettings
from tests.app_kit import (
    FAST,
    SLOWLY,
    client_of,
    listening,
    logged,
    run,
    scripted,
    settings,
    until,
)

LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
KEYLESS = ServerSettings(port=0)


def params(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **more)  # type: ignore[arg-type]


def test_live_is_not_ready() -> None:
    """A server that was loading its model, or draining, was sent requests."""

    async def scene() -> None:
        llm = scripted()
        async with client_of(create_app(llm, settings()), key=None) as client:
            assert (await client.get("/health")).json() == {"status": "live"}
            before = await client.get("/health/ready")
            assert before.status_code == 503
            assert before.json()["error"]["code"] == "not_ready"
            assert int(before.headers["retry-after"]) > 0
            await llm.start()
            assert (await client.get("/health/ready")).json() == {"status": "ready"}
            await llm.close()
            after = await client.get("/health/ready")
            assert after.status_code == 503
            assert "shutting down" in after.json()["error"]["message"]
            assert (await client.get("/health")).status_code == 200

    run(scene())


def test_models_and_version() -> None:
    """Clients ask for the names first; a name that is not served must be a 404 with a code."""

    async def scene() -> None:
        app = create_app(llm := scripted(), settings(served_names=("small", "org/small")))
        async with client_of(app) as client:
            assert [m["id"] for m in (await client.get("/v1/models")).json()["data"]] == [
                "small",
                "org/small",
            ]
            await llm.start()
            card = (await client.get("/v1/models/org/small")).json()
            assert (card["object"], card["max_model_len"], card["loops"]) == ("model", 4096, 4)
            other = await client.get("/v1/models/other")
            assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
            assert re.fullmatch(r"\d+\.\d+.*", (await client.get("/version")).json()["version"])
            await llm.close()

    run(scene())


ERRORS: list[tuple[RltError, int, str, str | None]] = [
    (RequestError("top_p", "is bad"), 400, "invalid_request_error", "top_p"),
    (OptionError("tools", 1, "no"), 400, "invalid_request_error", "tools"),
    (CheckpointError("/secret/folder", "no chat template"), 400, "invalid_request_error", None),
    (BusyError(8, 8, 7), 429, "rate_limit_error", None),
    (DeadlineError(3.0), 504, "timeout_error", None),
    (StageError("gone"), 503, "service_unavailable_error", None),
]


@pytest.mark.parametrize(("error", "status", "kind", "param"), ERRORS)
def test_errors_are_openai_s(error: RltError, status: int, kind: str, param: str | None) -> None:
    """Clients read {"error": {...}}; a message held the path of the model's folder."""

    async def scene() -> None:
        app = create_app(scripted(), settings())

        @app.get("/raise")
        async def fail() -> None:
            raise error

        async with client_of(app) as client:
            answer = await client.get("/raise")
        found = answer.json()["error"]
        assert (answer.status_code, found["type"], found["param"]) == (status, kind, param)
        assert set(found) == {"message", "type", "param", "code"}
        assert "/secret" not in found["message"]
        if status == 429:
            assert answer.headers["retry-after"] == "7"
        if status == 503:
            assert int(answer.headers["retry-after"]) > 0

    run(scene())


def test_framework_errors_are_openai_s_too() -> None:
    """404, 405 and a refused schema answered in the framework's own shape (detail, 422), and a
    refusal repeated what the user had sent."""

    async def scene() -> None:
        app = create_app(scripted(), settings())

        @app.post("/typed")
        async def typed(body: dict[str, int]) -> None:
            pass

        async with client_of(app) as client:
            missing, method = await client.get("/none"), await client.delete("/version")
            schema = await client.post("/typed", json={"a": "what the user wrote"})
            broken = await client.post(
                "/typed", content=b"{", headers={"Content-Type": "application/json"}
            )
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert (method.status_code, method.headers["allow"]) == (405, "GET")
        assert method.json()["error"]["code"] == "method_not_allowed"
        assert (schema.status_code, schema.json()["error"]["param"]) == (400, "a")
        assert "what the user wrote" not in schema.text
        assert (broken.status_code, broken.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )

    run(scene())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("my-id_1.2", True),
        ("x" * 129, False),
        ("two words", False),
        ('"}', False),
        ("", False),
    ],
)
def test_request_ids(given: str, kept: bool) -> None:
    """A client's id was lost, or anything a client sent became part of log and answer."""

    async def scene() -> None:
        app = create_app(scripted(), settings())

        @app.get("/noted")
        async def noted(request: Request) -> None:
            note(request, completion_tokens=3)

        with logged() as lines:
            async with client_of(app) as client:
                answer = await client.get("/noted", headers={"X-Request-Id": given})
        request_id = answer.headers["x-request-id"]
        assert (request_id == given) == kept
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", request_id)
        (line,) = lines
        assert line["request_id"] == request_id
        assert (line["method"], line["path"], line["status"]) == ("GET", "/noted", 200)
        assert (line["completion_tokens"], line["bytes"]) == (3, 4)
        assert line["seconds"] >= 0

    run(scene())


def values_of(text: str) -> dict[tuple[str, ...], float]:
    """Prometheus's text: name and labels, in order, without the model's -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "small"
            parts = [f"{name}={labels[name]}" for name in sorted(labels)]
            key = (sample.name, *parts)
            found[key] = sample.value
    return found


def test_metrics_have_the_values_of_what_ran() -> None:
    """A metric counted requests in place of answers, tokens twice, or never came back to 0."""

    async def scene() -> None:
        async with scripted(max_waiting=0) as llm:
            app = create_app(llm, settings(served_names=("small",)))
            await llm.generate(FAST, params(6, n=2))
            await llm.generate(FAST, params(3))
            with pytest.raises(DeadlineError):
                await llm.generate(SLOWLY, LONG, deadline=0.2)
            with pytest.raises(RequestError):
                await llm.generate("text", params(1))
            open_ones = [llm.stream(SLOWLY, LONG) for _ in range(8)]
            for stream in open_ones:
                await stream.open()
            with pytest.raises(BusyError):
                await llm.generate(FAST, params(1))
            async with client_of(app) as client:
                await until(lambda: llm.num_running == 8)
                busy = values_of((await client.get("/metrics")).text)
                for stream in open_ones:
                    stream.close()
                while (await llm.stats()).slots_used:
                    await asyncio.sleep(0.01)
                text = (await client.get("/metrics")).text
            found = values_of(text)
        assert busy["rlt:num_requests_running",] == 8
        assert found["rlt:num_requests_running",] == found["rlt:num_requests_waiting",] == 0
        assert found["rlt:ready",] == 1
        assert found["rlt:request_success_total", "finished_reason=length"] == 3
        assert found["rlt:request_success_total", "finished_reason=deadline"] == 1
        assert found["rlt:request_success_total", "finished_reason=abort"] == 8
        assert found["rlt:requests_refused_total", "reason=busy"] == 1
        assert found["rlt:requests_refused_total", "reason=invalid"] == 1
        assert found["rlt:prompt_tokens_total",] == 3 * 11
        # Depths 1 2 3 4 1 2 twice, 1 2 3, then those of the slow ones.
        assert found["rlt:exit_depth_bucket", "le=1.0"] >= 5
        assert found["rlt:exit_depth_count",] == found["rlt:exit_depth_bucket", "le=+Inf"]
        assert found["rlt:generation_tokens_total",] >= 15
        assert found["rlt:row_loops_total", "depth=1"] == found["rlt:exit_depth_count",]
        assert found["rlt:row_loops_total", "depth=4"] >= 2
        assert found["rlt:e2e_request_latency_seconds_count",] == 11
        assert found["rlt:time_to_first_token_seconds_count",] >= 3
        assert found["rlt:inter_token_latency_seconds_count",] >= 2 * 5 + 2
        assert found["rlt:http_requests_total", "method=GET", "path=/metrics", "status=200"] == 1

    run(scene())


def test_made_up_paths_make_no_metrics() -> None:
    """Every path that a scanner tried became a time series of its own."""

    async def scene() -> None:
        app = create_app(scripted(), settings(served_names=("small",)))
        async with client_of(app) as client:
            for path in ("/a", "/b/c", "/v1/models/x"):
                await client.get(path)
            await client.request("BREW", "/a")
            found = values_of((await client.get("/metrics")).text)
        paths = {key[2] for key in found if key[0] == "rlt:http_requests_total"}
        assert paths == {"path=other", "path=/v1/models/{model:path}"}

    run(scene())


def add_routes(app: FastAPI) -> None:
    @app.get("/whole")
    async def whole(request: Request) -> int:
        llm = context_of(request).llm
        return len((await while_connected(request, llm.generate(SLOWLY, LONG))).outputs)

    @app.get("/stream")
    async def stream(request: Request) -> StreamingResponse:
        opened = await context_of(request).llm.stream(SLOWLY, LONG).open()

        async def lines() -> AsyncIterator[str]:
            async with opened:
                async for part in opened:
                    yield f"{part.token_ids}\n"

        return StreamingResponse(lines())


@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_a_client_that_leaves_ends_its_request(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked whether the client was still there, least of all while it waited for a whole
    answer."""
    made = create_app

    def create(llm: AsyncLLM, chosen: ServerSettings) -> FastAPI:
        app = made(llm, chosen)
        add_routes(app)
        return app

    monkeypatch.setattr("rlt_core.server.run.create_app", create)

    async def scene() -> None:
        llm = scripted()
        with logged() as lines:
            async with listening(llm, KEYLESS) as url, httpx.AsyncClient() as client:
                asking = asyncio.ensure_future(_ask(client, url + path))
                await until(lambda: llm.num_open == 1)
                await asyncio.sleep(0.2)
                asking.cancel()
                await asyncio.wait({asking})
                await until(lambda: llm.num_open == 0)
                while (await llm.stats()).slots_used:
                    await asyncio.sleep(0.01)
                await until(lambda: lines)
        assert [line["message"] for line in lines] == ["request"]  # and no fault
        assert lines[0]["status"] in (200, 499)

    run(scene())


async def _ask(client: httpx.AsyncClient, url: str) -> None:
    async with client.stream("GET", url) as answer:
        async for _ in answer.aiter_bytes():
            pass


def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that took nothing of its answer kept the connection for ever."""
    made = create_app

    def create(llm: AsyncLLM, chosen: ServerSettings) -> FastAPI:
        app = made(llm, chosen)

        @app.get("/much")
        async def much() -> StreamingResponse:
            async def parts() -> AsyncIterator[bytes]:
                while True:
                    yield b"x" * 100_000

            return StreamingResponse(parts())

        return app

    monkeypatch.setattr("rlt_core.server.run.create_app", create)

    async def scene() -> None:
        chosen = ServerSettings(port=0, write_timeout_s=0.3)
        with logged() as lines:
            async with listening(scripted(), chosen) as url:
                port = int(url.rsplit(":", 1)[1])
                _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
                writer.write(b"GET /much HTTP/1.1\r\nHost: a\r\n\r\n")
                await until(lambda: lines)
                writer.close()
        assert [line["message"] for line in lines] == ["request"]

    run(scene())
