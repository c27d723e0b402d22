"""Who may use the server, what one client may send, and what never leaves it or gets logged."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from rlt_core.cli import main
from rlt_core.contract.errors import OptionError, RltError
from rlt_core.server.app import create_app
from rlt_core.server.key_guard import OPEN_PATHS
from rlt_core.server.keys import ApiKeys, read_keys
from rlt_core.server.settings import ServerSettings
from tests.app_kit import KEY, client_of, listening, logged, routes_of, run, scripted, settings

TLS = Path(__file__).parent / "tls"
OTHERS = [("GET", "/"), ("GET", "/nowhere"), ("PUT", "/v1")]
WRONG = [
    {},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": "Bearer "},
    {"Authorization": KEY},
    {"Authorization": f"Basic {KEY}"},
    {"Authorization": f"Token {KEY}"},
    {"X-Api-Key": KEY},
    {"Authorization": "Bearer \xff\xfe"},
]


def app_of(**changes: object) -> FastAPI:
    return create_app(scripted(), settings(**changes))


@pytest.mark.parametrize("headers", WRONG)
def test_every_route_but_health_wants_a_key(headers: dict[str, str]) -> None:
    """One route was forgotten (metrics, the OpenAPI, a page), or took any scheme."""

    async def scene() -> None:
        app, seen = app_of(), set()
        raw = [(n.encode(), v.encode("latin-1")) for n, v in headers.items()]
        async with client_of(app, key=None) as client:
            for method, path in [*routes_of(app), *OTHERS]:
                answer = await client.request(method, path, headers=raw)
                if path in OPEN_PATHS:
                    assert answer.status_code in (200, 405, 503)
                    continue
                seen.add(path)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                if method != "HEAD":
                    assert answer.json()["error"]["code"] == "invalid_api_key"
        asked = {"/", "/page/{name}", "/metrics", "/openapi.json", "/version", "/v1/models"}
        assert asked <= seen

    run(scene())


def test_the_right_key_opens_every_route() -> None:
    """The guard let nobody in, or only by one spelling of the scheme, or only with one key."""

    async def scene() -> None:
        app = create_app(scripted(), settings(keys=ApiKeys(["another-key", KEY])))
        async with client_of(app, key=None) as client:
            for scheme in ("Bearer", "bearer", "BEARER"):
                for key in ("another-key", KEY):
                    headers = {"Authorization": f"{scheme} {key}"}
                    for path in ("/version", "/v1/models", "/metrics", "/openapi.json"):
                        assert (await client.get(path, headers=headers)).status_code == 200
            twice = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer x")]
            assert (await client.get("/version", headers=twice)).status_code == 401

    run(scene())


def test_a_browser_without_a_key_gets_a_form() -> None:
    """The page could not be used with a key, or was public; the form must be a 401 too."""

    async def scene() -> None:
        async with client_of(app_of(), key=None) as client:
            answer = await client.get("/", headers={"Accept": "text/html,*/*"})
            assert answer.status_code == 401
            assert "form" in answer.text
            assert KEY not in answer.text
            assert "http" not in answer.text.replace("http-equiv", "")  # nothing from elsewhere

    run(scene())


def test_without_keys_nobody_is_asked() -> None:
    """A server for this machine alone asked for a key that it did not have."""

    async def scene() -> None:
        async with client_of(app_of(keys=ApiKeys()), key=None) as client:
            assert (await client.get("/version")).status_code == 200

    run(scene())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_a_public_bind_needs_a_key(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--host 0.0.0.0` opened the model to the whole network without a word."""
    with pytest.raises(RltError, match="no API key"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, keys=ApiKeys([KEY])).is_public
    assert ServerSettings(host=host, allow_unauthenticated=True).is_public
    assert main(["serve", "--host", host]) == 2
    err = capsys.readouterr().err
    assert "--allow-unauthenticated" in err
    assert len(err.splitlines()) <= 4


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_alone_needs_none(host: str) -> None:
    """The default refused to start."""
    assert not ServerSettings(host=host).is_public


def test_keys_come_from_file_and_environment(tmp_path: Path) -> None:
    """A comment, a blank line or the line's end became part of a key; one source hid the other."""
    file = tmp_path / "keys"
    file.write_text("# ours\n\nfile-key-one  \r\nfile-key-two\n")
    keys = read_keys(str(file), {"RLT_API_KEYS": "env-key-one, env-key-two\nenv-key-two"})
    assert len(keys) == 4
    for key in ("file-key-one", "file-key-two", "env-key-one", "env-key-two"):
        assert keys.accepts([f"Bearer {key}".encode()])
    assert not keys.accepts([b"Bearer # ours"])
    assert "key-one" not in repr(keys) + repr(vars(keys)) + repr(ServerSettings(keys=keys))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "tiny\n", "with space in it\n"])
def test_a_file_without_good_keys_is_refused(text: str, tmp_path: Path) -> None:
    """An empty file of keys left the server open; a bad key was shown in the error."""
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OptionError) as found:
        read_keys(str(file), {})
    assert text.strip() not in str(found.value) or not text.strip() or "#" in text
    with pytest.raises(OptionError, match="No such file"):
        read_keys(str(tmp_path / "none"), {})


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a refusal told how many keys, or characters, had matched."""
    compared: list[int] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(len(left))
        return left == right

    monkeypatch.setattr("rlt_core.server.keys.hmac.compare_digest", compare)
    keys = ApiKeys(["first-key", "second-key", "third-key"])
    for given in ("first-key", "third-key", "none", "x" * 1000):
        compared.clear()
        keys.accepts([f"Bearer {given}".encode()])
        assert compared == [32, 32, 32]


def test_cors_is_off_unless_asked_for() -> None:
    """Any web page could use a server on the reader's machine."""

    async def ask(app: FastAPI, origin: str) -> httpx.Response:
        async with client_of(app, key=None) as client:
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            return await client.options("/v1/models", headers=headers)

    async def scene() -> None:
        closed = await ask(app_of(), "https://a.example")
        assert "access-control-allow-origin" not in closed.headers
        opened = app_of(cors_origins=("https://a.example",))
        allowed = await ask(opened, "https://a.example")
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = await ask(opened, "https://b.example")
        assert "access-control-allow-origin" not in other.headers

    run(scene())


async def _parts(count: int, size: int = 1000, pause: float = 0.0) -> AsyncIterator[bytes]:
    for _ in range(count):
        await asyncio.sleep(pause)
        yield b" " * size


def test_large_bodies_are_refused() -> None:
    """Only Content-Length was looked at, so that a chunked body filled the memory."""

    async def scene() -> None:
        async with client_of(app_of(max_body_bytes=5000)) as client:
            said = await client.post("/v1/models", content=b" " * 5001)
            streamed = await client.post("/v1/models", content=_parts(6))
            lied = await client.post(
                "/v1/models", content=_parts(6), headers={"Content-Length": "10"}
            )
            fits = await client.post("/v1/models", content=b" " * 5000)
        for answer in (said, streamed, lied):
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        assert fits.status_code == 405

    run(scene())


def test_slow_bodies_and_large_heads_are_refused() -> None:
    """A client that sends a byte a minute kept its connection, and its memory, for ever."""

    async def scene() -> None:
        app = app_of(read_timeout_s=0.2, max_header_bytes=2000)
        async with client_of(app) as client:
            slow = await client.post("/v1/models", content=_parts(100, 1, 0.05))
            head = await client.get("/version", headers={"X-Long": "x" * 2000})
            query = await client.get("/version?" + "x" * 2000)
        assert (slow.status_code, slow.json()["error"]["type"]) == (408, "timeout_error")
        assert (head.status_code, query.status_code) == (431, 431)

    run(scene())


@pytest.mark.parametrize("sent", [b"", b"GET /version HTTP/1.1\r\nX-A: b", b"GET /version"])
def test_a_head_that_does_not_come_closes_the_connection(sent: bytes) -> None:
    """Connections on which no request came in were kept until there were no more."""

    async def scene() -> None:
        async with listening(scripted(), settings(port=0, read_timeout_s=0.3)) as url:
            port = int(url.rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            # One that is kept alive is timed anew for its next request.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"live")
            writer.write(b"GET /health HT")
            assert b"200" not in await asyncio.wait_for(reader.read(), 3)
            writer.close()

    run(scene())


def test_an_endless_head_is_refused() -> None:
    """A request whose head never ended filled the memory."""

    async def scene() -> None:
        async with listening(scripted(), settings(port=0, max_header_bytes=4000)) as url:
            port = int(url.rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
            assert b"400" in (await asyncio.wait_for(reader.read(), 10)).splitlines()[0]
            writer.close()

    run(scene())


def test_tls() -> None:
    """The certificate's options were accepted, and plain HTTP served."""

    async def scene() -> None:
        cert = str(TLS / "cert.pem")
        chosen = settings(port=0, ssl_certfile=cert, ssl_keyfile=str(TLS / "key.pem"))
        async with listening(scripted(), chosen) as url:
            trusted = ssl.create_default_context(cafile=cert)
            async with httpx.AsyncClient(verify=trusted) as client:
                assert (await client.get(f"{url}/health/ready")).status_code == 200
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"{url}/health")

    run(scene())


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    """A missing file was a traceback of the ssl module."""
    with pytest.raises(OptionError, match="no such file"):
        settings(ssl_certfile=str(tmp_path / "none.pem"))
    with pytest.raises(OptionError, match="no certificate"):
        settings(ssl_certfile=str(TLS / "key.pem"))
    with pytest.raises(OptionError, match="ssl-certfile is missing"):
        settings(ssl_keyfile=str(TLS / "key.pem"))


@pytest.mark.parametrize("log_prompts", [False, True])
def test_logs_hold_no_secret_and_no_prompt(log_prompts: bool) -> None:
    """Keys, prompts and query strings were in the logs; a fault's message held the prompt."""
    secret = "the recipe of my grandmother"

    async def scene() -> None:
        app = app_of(log_prompts=log_prompts)

        @app.post("/fault")
        async def fault() -> None:
            raise ValueError(f"cannot tokenize {secret!r}")

        with logged() as lines:
            async with client_of(app) as client:
                answer = await client.post("/fault?q=in-the-query", content=secret)
                await client.get("/version", headers={"Authorization": "Bearer not-our-key"})
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["type"] == "internal_error"
        assert answer.headers["x-request-id"] in error["message"]
        assert secret not in answer.text
        text = repr(lines)
        assert KEY not in text
        assert "not-our-key" not in text
        assert "in-the-query" not in text
        assert text.count(secret) == (2 if log_prompts else 0)  # of the body, of the fault
        faults = [line for line in lines if line["message"] == "fault"]
        assert [line["error"] for line in faults] == ["ValueError"]
        assert any("in fault" in f or f.endswith(" fault") for f in faults[0]["frames"])

    run(scene())


def test_no_pickle_on_the_wire() -> None:
    """A module that can run what it reads was imported where messages are read."""
    root = Path(__file__).parent.parent / "rlt_core"
    for folder in ("server", "stage", "api"):
        for file in (root / folder).rglob("*.py"):
            text = file.read_text()
            assert "import pickle" not in text
            assert "import marshal" not in text
