"""64 clients for minutes, against `rlt serve` with the demo model (issue 6); `make load`.

Every answer that ends is the one that the model gives alone; whoever is refused hears it at once;
nothing is left behind, and memory stays as it is.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
import pytest

from tests.load.clients import Clients, Tally
from tests.load.offered import Asked, asked
from tests.load.served import Served, headers, resident_mib, served

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
NUM_CLIENTS, NUM_SLOTS, NUM_WAITING = 64, 24, 40
BURST_EVERY_S = 4.0
# A refusal waits for nothing but its turn on a machine whose two cores are busy.
LATE_REFUSAL_S = 10.0
MORE_MIB = 12.0
OPTIONS = [
    *("--max-num-seqs", str(NUM_SLOTS), "--max-waiting", str(NUM_WAITING)),
    # Room for a third of what the slots may want: preemption, swaps, evictions.
    *("--max-num-tokens", "128", "--max-model-len", "384", "--kv-pages", "241"),
]
IDLE = ("num_requests_running", "num_requests_waiting", "num_prompts_in_progress", "pages_used")


@pytest.fixture(scope="module")
def offered() -> list[Asked]:
    return asked(seed=6)


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--load-seconds"))


def test_nothing_is_lost_or_wrong_or_left_behind(
    offered: list[Asked], seconds: float, seed: int
) -> None:
    """Guards answers under load: mixed up, cut off, given twice, never given; slots and pages that
    those who left still hold; memory that grows with every request."""
    with served(*OPTIONS) as server, Memory(server) as memory:
        tally = load(server, offered, seconds, seed)
        found = at_rest(server)
        report(tally, seconds, found)
        memory.check()
        assert not tally.faults, "\n".join(tally.faults[:20])
        assert tally.counts["stream"] > 0 < tally.counts["leave_stream"]
        assert tally.counts["429 queue_full"] > 0
        assert tally.slowest_refusal < LATE_REFUSAL_S
        assert found["aborts_total"] > 0
        ended = found["request_success_total{stop}"] + found["request_success_total{length}"]
        # Beside what was read, only answers whose clients left a moment too late.
        left = 2 * (tally.counts["leave_stream"] + tally.counts["leave_whole"])
        assert tally.answers <= ended <= tally.answers + left
        assert found.get("stage_restarts_total", 0.0) == 0.0
        assert server.stop() == 0


def test_a_killed_stage_ends_its_requests_and_another_serves(
    offered: list[Asked], seconds: float, seed: int
) -> None:
    """Guards clients who wait for ever for a stage that is gone, and a server that stays so."""
    seconds = max(12.0, seconds / 4)
    with served(*OPTIONS) as server:
        killed: list[float] = []

        def kill() -> None:
            server.kill_stage()
            killed.append(time.monotonic())

        timer = threading.Timer(seconds / 2, kill)
        timer.start()
        tally = load(server, offered, seconds, seed, may_fail=True)
        timer.join()
        at = killed[0]
        errors = [error for error in tally.errors if error[0] <= at <= error[1]]
        open_then = [one for one in tally.whole if one[0] <= at <= one[1]]
        latest = max([0.0, *(ended - at for _, ended, _ in errors)])
        served_again = min((end - at for begin, end in tally.whole if begin > at), default=-1.0)
        print(
            f"{len(errors)} requests ended with an error, the last {latest:.2f} s after the kill; "
            f"{len(open_then)} others open then; the first whole answer begun after it came "
            f"{served_again:.2f} s after it"
        )
        found = at_rest(server)
        report(tally, seconds, found)
        assert not tally.faults, "\n".join(tally.faults[:20])
        assert len(errors) >= NUM_CLIENTS / 2
        assert latest < 5.0
        assert served_again > 0
        assert found["stage_restarts_total"] == 1.0
        right = offered[0]
        answer = httpx.post(
            f"{server.url}/v1/completions", json=right.body, headers=headers(), timeout=30
        )
        assert answer.json()["choices"][0]["token_ids"] == right.answers[0].token_ids
        assert server.stop() == 0


def load(server: Served, offered: list[Asked], seconds: float, seed: int, **how: Any) -> Tally:
    """What came of so many seconds of clients."""
    clients = Clients(server.url, offered, seed, **how)
    until = time.monotonic() + seconds
    return asyncio.run(clients.run(NUM_CLIENTS, until, BURST_EVERY_S))


def at_rest(server: Served) -> dict[str, float]:
    """The metrics once nobody asks any more: gauges and pages are those of the beginning."""
    end = time.monotonic() + 20
    while True:
        found = server.metrics()
        busy = {name: found[name] for name in IDLE if found[name]}
        if not busy:
            assert found["pages_free"] == found["pages"]
            return found
        assert time.monotonic() < end, f"still there: {busy}"
        time.sleep(0.1)


def report(tally: Tally, seconds: float, found: dict[str, float]) -> None:
    """The numbers, for `-s` and for whoever reads a failure."""
    print(f"{seconds:g} s, {NUM_CLIENTS} clients: {dict(sorted(tally.counts.items()))}")
    print(
        f"{tally.answers} right answers, {tally.tokens} tokens ({tally.tokens / seconds:.0f}/s), "
        f"{len(tally.ids)} ids; slowest 429 {tally.slowest_refusal:.2f} s"
    )
    names = ("num_preemptions_total", "pages_swapped_out_total", "prefix_cache_hits_total")
    print({name: found[name] for name in (*names, "aborts_total", "ticks_total", "pages_cached")})


class Memory:
    """Resident memory of server and stage, looked at twice a second."""

    def __init__(self, server: Served) -> None:
        self._server, self._seen = server, list[tuple[float, float]]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def check(self) -> None:
        """It is no higher in the last quarter than in the second one."""
        num = len(self._seen) // 4
        for place, name in enumerate(("server", "stage")):
            values = [one[place] for one in self._seen]
            quarters = [median(values[i * num : (i + 1) * num]) for i in range(4)]
            print(f"{name}: {', '.join(f'{q:.1f}' for q in quarters)} MiB by quarter")
            assert quarters[3] - quarters[1] < MORE_MIB, name

    def _watch(self) -> None:
        stage = self._server.stage_pid
        read: Callable[[int | None], float] = resident_mib
        while not self._end.wait(0.5):
            self._seen.append((read(self._server.pid), read(stage)))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
