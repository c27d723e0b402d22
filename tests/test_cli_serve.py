"""`rlt serve` as a process: what it says, how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rlt_core.cli import main

ABOVE = "it must be a finite number above 0"
OPEN = ["--port", "0", "--allow-unauthenticated"]
SERVE = [sys.executable, "-m", "rlt_core.cli", "serve"]


@contextmanager
def started(
    tmp_path: Path, *options: str, **env: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a server with the demo, and its process; what it said is in `said`."""
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(
            [*SERVE, "--port", "0", "--max-num-seqs", "4", *options],
            stderr=said,
            text=True,
            env={**os.environ, **env},
        )
    try:
        yield _url(tmp_path, process), process
    finally:
        process.kill()
        process.wait()


def _url(tmp_path: Path, process: subprocess.Popen[str]) -> str:
    """Once it is ready."""
    end = time.monotonic() + 50
    while time.monotonic() < end and process.poll() is None:
        for line in (tmp_path / "said").read_text().splitlines():
            if line.startswith("ready: "):
                return line.split(" at ")[1].split(",")[0]
        time.sleep(0.05)
    raise AssertionError((tmp_path / "said").read_text())


def _children(parent: int) -> list[str]:
    """Process ids; none where there is no /proc."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(file.read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(file.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_serves_the_demo_and_ends_on_a_signal(sign: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C left the stage process behind, printed a traceback, or gave another exit code."""
    with started(tmp_path, RLT_API_KEYS="key-of-the-test") as (url, process):
        headers = {"Authorization": "Bearer key-of-the-test"}
        assert httpx.get(f"{url}/v1/models").status_code == 401
        models = httpx.get(f"{url}/v1/models", headers=headers).json()
        assert [model["id"] for model in models["data"]] == ["demo"]
        stages = _children(process.pid)
        assert stages or not Path("/proc").exists()
        process.send_signal(sign)
        assert process.wait(30) == 0
    said = (tmp_path / "said").read_text()
    assert "the embedded demo is served" in said
    assert "1 API key" in said
    assert "ending: no answer is in work" in said
    assert "Traceback" not in said
    assert "key-of-the-test" not in said
    for pid in stages:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ctrl_c_says_what_it_waits_for(tmp_path: Path) -> None:
    """It printed nothing for up to 30 s, and nobody was told that a second one ends it at once."""
    said = tmp_path / "said"
    with started(tmp_path, "--drain-timeout", "60") as (url, process):
        body = {"prompt": "Ann has 8.", "max_tokens": 400, "ignore_eos": True, "n": 20}
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        while not httpx.get(f"{url}/v1/engine").json()["state"]["slots_used"]:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        while "ending" not in said.read_text() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        asking.join()
    (line,) = (line for line in said.read_text().splitlines() if line.startswith("ending"))
    expected = r"ending: waiting up to 60 s for \d+ answers in work; Ctrl-C again ends at once"
    assert re.fullmatch(expected, line)
    assert statuses == [503]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_signal_while_the_model_loads(tmp_path: Path) -> None:
    """Ctrl-C in the seconds of loading gave a traceback, or nothing until the model was there."""
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen([*SERVE, "--port", "0"], stderr=said)
    while "loading" not in (tmp_path / "said").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (0, 130)
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_a_port_in_use_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use was a traceback, after the model had been loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert f"--port {port}: 127.0.0.1" in err
    assert "Fix: --port" in err
    assert len(err.splitlines()) <= 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--port", "70000"], "--port 70000"),
        (["--host", "no.such.host.invalid", "--allow-unauthenticated"], "--host"),
        (["--api-key-file", "/no/such/file"], "--api-key-file"),
        (["--ssl-certfile", "/no/such/file"], "--ssl-certfile"),
        (["--max-waiting", "-1"], "--max-waiting -1: it must be "),
        (["--max-num-seqs", "0"], "--max-num-seqs 0: it must be"),
        (["--request-timeout", "-1"], f"--request-timeout -1.0: {ABOVE}, or 0 for none"),
        (["--request-timeout", "nan"], f"--request-timeout nan: {ABOVE}, or 0 for none"),
        (["--request-timeout", "inf"], f"--request-timeout inf: {ABOVE}, or 0 for none"),
        (["--hang-timeout", "-1"], f"--hang-timeout -1.0: {ABOVE}, or 0 for none"),
        (["--hang-timeout", "nan"], f"--hang-timeout nan: {ABOVE}, or 0 for none"),
        (["--drain-timeout", "-1"], "--drain-timeout -1.0: it must be a finite number, 0 or more"),
        (["--drain-timeout", "nan"], "--drain-timeout nan: it must be a finite number, 0 or more"),
        (["--drain-timeout", "inf"], "--drain-timeout inf: it must be a finite number, 0 or more"),
        (["--served-model-name", ""], "--served-model-name '': it must be what requests say"),
        (["--served-model-name", " a"], "--served-model-name ' a': it must be what requests say"),
        (["--cors-origin", "foo"], "--cors-origin 'foo': it must be scheme://host"),
        (["--cors-origin", ""], "--cors-origin '': it must be scheme://host"),
        (["--cors-origin", "https://a.example/"], "without a path"),
        (["--cors-origin", "https://A.example"], "in lower case"),
        (["--otlp-endpoint", "foo"], "--otlp-endpoint 'foo': it must be a URL, as http://"),
        (["--otlp-endpoint", "localhost:4318"], "it must be a URL, as http://"),
        (["--otlp-endpoint", "http://a:b"], "it must be a URL, as http://"),
        (
            ["--host", "192.0.2.1", *OPEN],
            "--host '192.0.2.1': no address of this machine\nFix: --host",
        ),
        (["/no/such/model"], "no such model folder"),
        (["--kv-layout", "none"], "none"),
    ],
)
def test_wrong_options_are_one_error(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option was found after the weights had been read, by a traceback, or never (nan, a
    name that no request can say, an origin that no browser sends); or as a Python field, or as the
    port's fault where the host was wrong."""
    assert main(["serve", *options]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) <= 4
