"""The stage's process as its parent sees it: its folder, its sockets' endpoints, its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import zmq

import rlt_core
from rlt_core.stage.config import StageConfig

# A Unix socket's path has 108 bytes at most on Linux (104 elsewhere).
MAX_IPC_PATH = 90
GRACE_S = 2.0


class StageProcess:
    """Starts `python -m rlt_core.stage` and ends it; `folder` is private and removed at the end."""

    def __init__(self, config: StageConfig, folder: Path, endpoints: tuple[str, str]) -> None:
        self.folder = folder
        config_path = folder / "config.json"
        config_path.write_bytes(msgspec.json.encode(config))
        requests, answers = endpoints
        command = [sys.executable, *_safe_path(), "-m", "rlt_core.stage", "--socket", requests]
        command += ["--answers", answers, "--config", str(config_path)]
        command += ["--parent", str(os.getpid())]
        # Its own session, so that Ctrl-C reaches the client alone; the pipe's end is its sign
        # that the client is gone.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=_environment(), start_new_session=True
        )

    @property
    def pid(self) -> int:
        """The process id, for logs and tests."""
        return self._process.pid

    def end_reason(self) -> str | None:
        """None while it runs, else how it ended."""
        status = self._process.poll()
        if status is None:
            return None
        if status < 0:
            return f"the stage process was ended by {signal.Signals(-status).name}"
        return f"the stage process ended with status {status}"

    def stop(self) -> None:
        """Waits a little, then terminates, then kills; leaves no child and no folder."""
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                self._process.send_signal(sign)
            try:
                self._process.wait(GRACE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def bind_pair(
    context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], tuple[str, str]]:
    """(socket to send requests, socket to receive answers, both endpoints); ipc where it fits."""
    sockets, endpoints = [], []
    for kind, name in ((zmq.PUSH, "requests"), (zmq.PULL, "answers")):
        socket = context.socket(kind)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        path = str(folder / name)
        fits = zmq.has("ipc") and len(path.encode()) <= MAX_IPC_PATH
        socket.bind(f"ipc://{path}" if fits else "tcp://127.0.0.1:*")
        sockets.append(socket)
        endpoints.append(socket.getsockopt(zmq.LAST_ENDPOINT))
    requests, answers = (
        e.decode().rstrip("\0") if isinstance(e, bytes) else str(e) for e in endpoints
    )
    return sockets[0], sockets[1], (requests, answers)


def private_folder() -> Path:
    """A new folder that only this user may enter."""
    return Path(tempfile.mkdtemp(prefix="rlt-"))


def _safe_path() -> list[str]:
    # Keeps the current folder off the module path, where a file named torch.py would be found.
    return ["-P"] if sys.version_info >= (3, 11) else []


def _environment() -> dict[str, str]:
    """The child finds rlt_core where this process found it, installed or not.

    Its CPU threads sleep while they wait for each other: measured on two busy cores, spinning
    (libgomp's default) made ticks eight times slower.
    """
    root = str(Path(rlt_core.__path__[0]).resolve().parent)
    parts = [root, os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(part for part in parts if part)
    return {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": path}
