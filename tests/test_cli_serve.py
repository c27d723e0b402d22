"""`rlt serve` as a process: what it says, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rlt_core.cli import main

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
    assert "Traceback" not in said
    assert "key-of-the-test" not in said
    for pid in stages:
        assert not Path(f"/proc/{pid}").exists()


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
        (["--max-waiting", "-1"], "max_waiting"),
        (["--request-timeout", "-1"], "--request-timeout"),
        (["/no/such/model"], "no such model folder"),
        (["--kv-layout", "none"], "none"),
    ],
)
def test_wrong_options_are_one_error(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option was found after the weights had been read, or by a traceback."""
    assert main(["serve", *options]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) <= 4
