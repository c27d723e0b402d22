"""`rlt bench host`: the host's work for one tick, and nothing of the device's.

Measured: planning the tick, pages and page-table changes, applying the results of an earlier
tick, bookkeeping, and the message with its events to a client in another process. Taking a new
request (checks, queue) is timed apart: it happens when a message comes. In the steady state
every tick admits one request and ends one, two ticks are in flight, and at 256 slots at least
64 tokens leave each tick, at depths from 1 to 4 of 4 loops. Plain ticks, in which nobody comes or
goes and no prompt runs, are timed behind these: most ticks of a server are such.

    rlt bench host --slots 256 --ticks 2000
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import zmq

from rlt_core.bench.sink import END
from rlt_core.bench.synthetic import synthetic_kv, synthetic_plan
from rlt_core.bench.synthetic_device import SyntheticDevice
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.request import EngineRequest, Events
from rlt_core.schedule.scheduler import Scheduler
from rlt_core.stage.messages import Tick, encode

DEPTHS = (1, 2, 3, 4)
PROMPT_LENS = (8, 25)
PAGE_SIZE, MAX_LEN, LOOPS = 16, 512, 4
WARM_TICKS = 200
# Until the last prompt is through; then as many as leave every request short of MAX_LEN.
SETTLING_TICKS, MOST_PLAIN_TICKS = 50, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Microseconds of host work a tick at one number of slots, and what the ticks contained.

    take_mean: microseconds to take one request. plain_p50: of ticks with decode rows alone.
    """

    num_slots: int
    ticks: int
    mean: float
    p50: float
    p99: float
    take_mean: float
    plain_p50: float
    tokens_per_tick: float
    fewest_tokens: int
    ends_per_tick: float
    admissions_per_tick: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def measure_host(num_slots: int, *, ticks: int = 2000, seed: int = 0) -> HostTimes:
    """Run `ticks` steady ticks of a scheduler with `num_slots` residents."""
    with _client() as send:
        return HostRun(num_slots, seed, send).measure(ticks)


class HostRun:
    """One scheduler in its steady state, and a device that only draws; for tests too."""

    def __init__(self, num_slots: int, seed: int, send: Callable[[bytes], None]) -> None:
        plan = synthetic_plan(loops=LOOPS)
        config = EngineConfig(
            num_slots=num_slots,
            num_places=256,
            chunk_size=64,
            page_size=PAGE_SIZE,
            num_pages=num_slots * (MAX_LEN // PAGE_SIZE) * LOOPS + 1,
            max_len=MAX_LEN,
            max_depth=LOOPS,
        )
        self._scheduler = Scheduler(plan, config, synthetic_kv(plan, page_size=PAGE_SIZE))
        self._device = SyntheticDevice(config, DEPTHS, seed)
        self._rng, self._send, self._num_slots = np.random.default_rng(seed), send, num_slots
        self._next_id = 0
        self._clock = self._take_clock = 0

    def measure(self, ticks: int) -> HostTimes:
        """Fill the slots, let the run settle, then time."""
        for _ in range(self._num_slots):
            self._scheduler.add(self.request())
        self._submit()
        firsts = 0
        while firsts < self._num_slots:
            firsts += int(np.count_nonzero(self.tick().depth == LOOPS))
        self._device.ending = True
        for _ in range(WARM_TICKS):
            self.tick(self.request())
        # As a stage does: what lives as long as it is never looked at again.
        gc.collect()
        gc.freeze()
        try:
            return self._timed(ticks)
        finally:
            gc.unfreeze()

    def _timed(self, ticks: int) -> HostTimes:
        times, tokens, ends = (np.zeros(ticks, np.int64) for _ in range(3))
        self._take_clock = 0
        before = self._scheduler.counts.slots_reused
        for i in range(ticks):
            self._clock = 0
            events = self.tick(self.request())
            times[i] = self._clock
            tokens[i], ends[i] = len(events.token), np.count_nonzero(events.finish)
        micros, reused = times / 1000, self._scheduler.counts.slots_reused - before
        return HostTimes(
            num_slots=self._num_slots,
            ticks=ticks,
            mean=float(micros.mean()),
            p50=float(np.percentile(micros, 50)),
            p99=float(np.percentile(micros, 99)),
            take_mean=self._take_clock / ticks / 1000,
            plain_p50=self._plain(min(ticks, MOST_PLAIN_TICKS)),
            tokens_per_tick=float(tokens.mean()),
            fewest_tokens=int(tokens.min()),
            ends_per_tick=float(ends.mean()),
            admissions_per_tick=reused / ticks,
        )

    def _plain(self, ticks: int) -> float:
        """The median microseconds of ticks in which nobody comes or goes."""
        self.stay()
        times = np.zeros(ticks, np.int64)
        for i in range(ticks):
            self._clock = 0
            self.tick()
            times[i] = self._clock
        return float(np.median(times)) / 1000

    def resume(self) -> None:
        """From now on a request ends in every tick."""
        self._device.ending = True

    def stay(self) -> None:
        """From now on nobody ends; the prompts in progress are run."""
        self._device.ending = False
        for _ in range(SETTLING_TICKS):
            self.tick()

    def tick(self, request: EngineRequest | None = None) -> Events:
        """Take a request, if one comes, submit a tick, apply the oldest in flight."""
        start = perf_counter_ns()
        if request is not None:
            self._scheduler.add(request)
        self._take_clock += perf_counter_ns() - start
        self._submit()
        out = self._device.collect()
        start = perf_counter_ns()
        events = self._scheduler.apply(out)
        self._send(encode(Tick(events=events)))
        self._clock += perf_counter_ns() - start
        return events

    def _submit(self) -> None:
        start = perf_counter_ns()
        tick = self._scheduler.next_tick()
        self._clock += perf_counter_ns() - start
        if tick is not None:
            self._device.submit(tick)

    def request(self) -> EngineRequest:
        """The next one."""
        self._next_id += 1
        return EngineRequest(
            request_id=self._next_id,
            prompt=self._rng.integers(0, 49152, self._rng.integers(*PROMPT_LENS)),
            max_tokens=MAX_LEN,
            loops=LOOPS,
            max_loops=LOOPS,
            seed=self._next_id,
            stop_ids=(0,),
        )


@contextmanager
def _client() -> Iterator[Callable[[bytes], None]]:
    """`send` to a process that reads."""
    with tempfile.TemporaryDirectory(prefix="rlt-bench-") as folder:
        endpoint = f"ipc://{Path(folder) / 'events'}"
        with zmq.Context() as context, context.socket(zmq.PUSH) as outbox:
            outbox.set_hwm(0)
            outbox.bind(endpoint)
            reader = subprocess.Popen([sys.executable, "-m", "rlt_core.bench.sink", endpoint])
            try:
                yield outbox.send
                outbox.send(END)
                reader.wait(timeout=30)
            finally:
                reader.kill()
                reader.wait()
