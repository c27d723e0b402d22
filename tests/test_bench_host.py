"""`rlt bench host` measures what it says: what its ticks contain is checked, never their time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest
import typer
from typer.testing import CliRunner

from rlt_core.bench.host import HostRun, measure_host
from rlt_core.cli import bench
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.batch import TickInput

# Calls of rlt's own Python functions a tick, the benchmark's not counted. They do not depend on
# the machine or its load; what takes one more should be worth it.
MOST_PLAIN_CALLS, MOST_BUSY_CALLS = 28, 116


def test_every_timed_tick_admits_one_and_ends_one() -> None:
    """Guards a benchmark that times an engine without the work it claims: idle slots, no ends."""
    times = measure_host(64, ticks=30)
    assert times.ends_per_tick == 1.0
    assert times.admissions_per_tick == 1.0
    assert times.tokens_per_tick > 64 / 4
    assert 0 < times.p50 <= times.p99
    assert times.plain_p50 > 0


def test_the_host_does_not_do_more_and_more_each_tick() -> None:
    """Ticks of decode rows alone took twice as long from the day on that masks were there, though
    nobody used any: each asked a question that made the host write down its log of outputs."""
    run = HostRun(64, seed=0, send=lambda message: None)
    run.measure(20)
    plain = calls(run.tick, 100)
    run.resume()
    busy = calls(lambda: run.tick(run.request()), 100)
    print(f"{plain.total()} calls in 100 plain ticks, {busy.total()} where requests come and go")
    assert plain.total() <= 100 * MOST_PLAIN_CALLS, plain
    assert busy.total() <= 100 * MOST_BUSY_CALLS, busy
    # Eight ticks are written down at once; pages that run out now and then want it sooner.
    settles = plain["SlotTable.settle"] or plain["settle"]  # Python 3.10 knows no co_qualname
    assert settles <= 35


def calls(tick: Callable[[], object], ticks: int) -> Counter[str]:
    """Calls of Python functions of rlt_core outside of bench/, by name."""
    found = Counter[str]()

    def count(frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("rlt_core.") and ".bench." not in name:
            code = frame.f_code
            found[getattr(code, "co_qualname", code.co_name)] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(ticks):
            tick()
    finally:
        sys.setprofile(before)
    return found


def test_json_output_is_one_document(capfd: pytest.CaptureFixture[str]) -> None:
    """Guards `--json` that a script cannot read."""
    app = typer.Typer()
    bench.register(app)
    result = CliRunner().invoke(app, ["bench", "host", "--slots", "16", "--ticks", "5", "--json"])
    assert result.exit_code == 0, result.output
    (times,) = json.loads(result.output)["host"]
    assert times["num_slots"] == 16
    assert times["ticks"] == 5


def test_chunks_of_keys_cover_every_row_and_come_down_again() -> None:
    """Guards a bound on the rows' lengths that lags behind: attention would leave out the newest
    keys of a long row, or go on paying for a long request that has ended."""
    run, chunks = HostRun(16, seed=0, send=lambda message: None), list[int]()
    submit = run._device.submit

    def checked(tick: TickInput) -> None:
        longest = int(tick.page_limit[tick.decode_slots].max(initial=0))
        assert tick.num_chunks * CHUNK_KEYS >= longest, (tick.tick, tick.num_chunks, longest)
        chunks.append(tick.num_chunks)
        submit(tick)

    run._device.submit = checked  # type: ignore[method-assign]  # watched
    run.measure(5)
    run.stay()
    for _ in range(400):
        run.tick()
    run.resume()
    for _ in range(200):
        run.tick(run.request())
    print(f"{min(chunks)} to {max(chunks)} chunks, {chunks[-1]} at the end")
    assert max(chunks) > 1
    assert chunks[-1] < max(chunks)
