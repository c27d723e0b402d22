"""`rlt serve` as a process of its own, watched from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

KEY = "the-key-of-the-load-test"
START_S = 120.0
_URL = re.compile(r"ready: .* at (http://[\d.:]+)")


class Served:
    """A server, its stage and what they say of themselves."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process, self.url, self.stopped = process, url, False

    @property
    def pid(self) -> int:
        """Of the server itself."""
        return self._process.pid

    @property
    def stage_pid(self) -> int | None:
        """Of the process that runs the model, while there is one."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"rlt_core.stage" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def kill_stage(self) -> None:
        """As the system does when memory runs out."""
        pid = self.stage_pid
        assert pid is not None, "there is no stage to kill"
        os.kill(pid, signal.SIGKILL)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and by "name{value of the last label}"."""
        answer = httpx.get(f"{self.url}/metrics", headers=headers(), timeout=30)
        assert answer.status_code == 200, answer.text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                name = sample.name.removeprefix("rlt:")
                more = [v for k, v in sample.labels.items() if k != "model_name"]
                found[f"{name}{{{more[-1]}}}" if more else name] = sample.value
        return found

    def stop(self) -> int:
        """Asks it to end; its exit code."""
        self.stopped = True
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


def headers() -> dict[str, str]:
    """With the key."""
    return {"Authorization": f"Bearer {KEY}"}


def resident_mib(pid: int | None) -> float:
    """Memory of a process, MiB; 0.0 of one that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


@contextmanager
def served(*options: str) -> Iterator[Served]:
    """`rlt serve` of the demo model with these options, ready."""
    command = [sys.executable, "-m", "rlt_core.cli", "serve", "--port", "0", "--no-access-log"]
    env = {**os.environ, "RLT_API_KEYS": KEY}
    process = subprocess.Popen(
        [*command, *options], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)
            if _URL.search(line):
                ready.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + START_S
        while not ready.wait(0.2):
            assert process.poll() is None, "".join(said)
            assert time.monotonic() < end, "".join(said)
        urls = [found[1] for line in said if (found := _URL.search(line))]
        server = Served(process, urls[0])
        yield server
        if not server.stopped:
            assert process.poll() is None, "the server ended by itself:\n" + "".join(said[-20:])
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        thread.join(10)
        process.stderr.close()
        faults = [line for line in said if "Traceback" in line or "internal error" in line]
        assert not faults, "".join(said[-60:])
