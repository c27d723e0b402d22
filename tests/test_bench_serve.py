"""`rlt bench serve` offers what it says and counts what came: sums are checked on answers that were
written by hand, the commands on the demo model; never their time."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.bench.answers import Answered, Limits, summary
from rlt_core.bench.depths import Synthetic
from rlt_core.bench.lengths import LENGTHS
from rlt_core.bench.offered import Ask, Offer, Served, arrivals, warm_up
from rlt_core.bench.open_load import AskError, OpenLoad, Piece
from rlt_core.bench.svg import plot
from rlt_core.cli import bench
from rlt_core.cli.bench_record import without_keys
from rlt_core.cli.serve_load import failure
from rlt_core.contract.errors import OptionError
from tests.server_kit import running

SERVED = Served(name="fake", max_len=4096, loops=4, token_ids=range(100, 200))
OFFER = Offer(lengths=LENGTHS["alpaca"], rate=50.0, num_requests=400, duration=None)
SIZES: dict[str, Any] = {"in_process": True, "max_num_seqs": 4, "max_num_tokens": 64}


def test_a_seed_gives_the_same_requests_however_many_come() -> None:
    """Guards runs that cannot be compared: another number of requests must not change the first."""
    asks = arrivals(OFFER, SERVED)
    assert arrivals(replace(OFFER, num_requests=20), SERVED) == asks[:20]
    assert arrivals(replace(OFFER, seed=1), SERVED)[:5] != asks[:5]
    assert not {tuple(a.prompt) for a in warm_up(OFFER, SERVED, 9)} & {
        tuple(a.prompt) for a in asks
    }
    until = arrivals(replace(OFFER, num_requests=None, duration=4.0), SERVED)
    assert until == [ask for ask in asks if ask.at <= 4.0]


def test_arrivals_are_a_poisson_process_and_lengths_have_their_means() -> None:
    """Guards a load that is not the one that the page names: gaps of an exponential have a
    standard deviation equal to their mean; means are within 5 % of those that were published."""
    asks = arrivals(replace(OFFER, num_requests=4000), SERVED)
    gaps = np.diff([0.0, *(ask.at for ask in asks)])
    assert abs(gaps.mean() * OFFER.rate - 1) < 0.06
    assert abs(gaps.std() * OFFER.rate - 1) < 0.08
    for name, lengths in LENGTHS.items():
        rng = np.random.default_rng(7)
        drawn = np.array([lengths.draw(rng, 1 << 20, 1.0) for _ in range(12000)])
        wanted = (lengths.prompt.mean, lengths.answer.mean)
        assert np.allclose(drawn.mean(0), wanted, rtol=0.05), name
        cut = [lengths.draw(rng, 64, 1.0) for _ in range(300)]
        assert all(prompt >= 1 and answer >= 2 and prompt + answer <= 64 for prompt, answer in cut)


def test_depths_replay_from_the_second_output_on() -> None:
    """Guards a replay that is a token short, or whose first output is not at full depth."""
    asks = arrivals(replace(OFFER, depths=Synthetic(name="uniform")), SERVED)[:50]
    for ask in asks:
        assert ask.trace is not None
        assert len(ask.trace) == ask.num_tokens
        assert ask.trace[0] == 4
    assert {depth for ask in asks for depth in ask.trace or ()} == {1, 2, 3, 4}


def test_times_are_those_of_the_answers() -> None:
    """Guards wrong sums: a first token counted from sending, pieces of several tokens counted as
    one, a failed request among the good ones."""
    first = Answered(arrived=1.0, prompt_len=5, num_tokens=4, num_loops=8, ended=2.5)
    first.came = [(1.5, 1), (1.7, 2), (2.3, 1)]
    second = Answered(arrived=2.0, prompt_len=7, num_tokens=2, num_loops=6, ended=4.0)
    second.came = [(3.0, 1), (4.0, 1)]
    failed = Answered(arrived=0.0, prompt_len=9, num_tokens=2, ended=5.0, error="BusyError")
    assert first.itl == pytest.approx([0.1, 0.1, 0.6])
    assert first.tpot == pytest.approx(0.8 / 3)
    assert (first.ttft, first.e2e) == pytest.approx((0.5, 1.5))
    found = summary([first, second, failed], Limits(ttft=0.8, tpot=0.5), 0.0)
    assert (found.num_requests, found.num_answered, found.num_good) == (3, 2, 1)
    assert found.errors == {"BusyError": 1}
    assert (found.seconds, found.tokens, found.prompt_tokens) == (5.0, 6, 12)
    assert found.mean_depth == pytest.approx(14 / 6)
    assert found.times["ttft_ms"]["p50"] == pytest.approx(750)
    assert found.times["itl_ms"]["p99"] > 900
    assert found.as_dict()["goodput_per_s"] == pytest.approx(0.2)
    json.dumps(found.as_dict())


class FakeTarget:
    """Answers after `before` ran, in one piece a token."""

    def __init__(self, before: Callable[[Ask], Any]) -> None:
        self._before, self.asked = before, list[int]()

    async def served(self) -> Served:
        return SERVED

    async def ask(self, ask: Ask) -> AsyncIterator[Piece]:
        self.asked.append(ask.number)
        await self._before(ask)
        for depth in range(ask.num_tokens):
            yield Piece(1, [1 + depth % 4])


def _asks(num: int) -> list[Ask]:
    return [Ask(number=i, at=0.001 * i, prompt=[1], num_tokens=3) for i in range(num)]


def test_nobody_waits_for_answers_to_be_sent() -> None:
    """Guards a closed load, under which a slow server gets fewer requests and looks well."""
    everybody = asyncio.Event()

    async def before(ask: Ask) -> None:
        if ask.number == 9:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 20)

    async def scene() -> list[Answered]:
        return await OpenLoad(FakeTarget(before), None, lambda: None).run(_asks(10))

    assert [one.error for one in asyncio.run(scene())] == [None] * 10


def test_waiting_for_a_place_counts() -> None:
    """Guards the omission that makes a full server look quick: with one place the times of those
    who wait for it begin when they were due."""

    async def before(ask: Ask) -> None:
        await asyncio.sleep(0.05)

    async def scene() -> list[Answered]:
        return await OpenLoad(FakeTarget(before), 1, lambda: None).run(_asks(5))

    answers = asyncio.run(scene())
    assert [one.arrived for one in answers] == [0.001 * i for i in range(5)]
    assert answers[4].ttft > 0.2
    assert all(one.num_loops == 6 for one in answers)


def test_errors_are_counted_by_kind() -> None:
    """Guards a benchmark that leaves out what failed, or an answer that was cut short."""

    async def before(ask: Ask) -> None:
        if ask.number % 3 == 0:
            raise AskError("429 queue_full", f"request {ask.number}")

    class Short(FakeTarget):
        async def ask(self, ask: Ask) -> AsyncIterator[Piece]:
            shorter = replace(ask, num_tokens=2) if ask.number == 4 else ask
            async for piece in super().ask(shorter):
                yield piece

    async def scene() -> list[Answered]:
        return await OpenLoad(Short(before), None, lambda: None).run(_asks(6))

    found = summary(asyncio.run(scene()), Limits(), 0.0)
    assert found.errors == {"429 queue_full": 2, "fewer tokens than asked for": 1}
    assert found.num_answered == 3
    assert failure(found, "429 queue_full") == "429 queue_full: request 0"
    assert failure(found, "fewer tokens than asked for") == "fewer tokens than asked for"


def test_a_plot_has_a_line_for_each_kind_of_time() -> None:
    """Guards a picture that is no SVG, or whose lines leave it."""
    text = plot("a < b", {"ttft": [0.2, 0.1], "tpot": [], "itl": [0.001] * 900, "e2e": [3.0]})
    assert "a &lt; b" in text
    lines = re.findall(r'<polyline points="([^"]+)"', text)
    assert len(lines) == 3
    for line in lines:
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 720
            assert 0 <= y <= 400
            assert math.isfinite(x + y)


def test_records_hold_no_key() -> None:
    """Guards a key that goes with a benchmark's JSON to wherever it is published."""
    given = ["bench", "serve", "--api-key", "secret", "--rate", "2", "--api-key=secret"]
    wanted = ["bench", "serve", "--api-key", "KEY", "--rate", "2", "--api-key=KEY"]
    assert without_keys(given) == wanted


def _run(*argv: str) -> Result:
    app = typer.Typer()
    bench.register(app)
    return CliRunner().invoke(app, ["bench", "serve", *argv])


SMALL = ("--lengths", "alpaca", "--length-scale", "0.2", "--rate", "40", "--num-requests", "6")


@pytest.mark.slow
def test_the_demo_model_is_measured_here(tmp_path: Path) -> None:
    """Guards the command from its options to its JSON and its plot; depths that were drawn are
    those that came."""
    picture = tmp_path / "times.svg"
    sizes = ("--max-num-seqs", "4", "--max-num-tokens", "64", "--warm-up", "1")
    result = _run(*SMALL, *sizes, "--depths", "full", "--plot", str(picture), "--json")
    assert result.exit_code == 0, result.output
    line = json.loads(result.output.splitlines()[-1])
    found = line["results"]
    assert (found["answered"], found["errors"]) == (6, {})
    assert found["mean_depth"] == line["settings"]["loops"] == 4
    assert line["settings"]["exit_policy"] == "trace"
    assert line["settings"]["rate"] == 40
    assert 0 < found["ttft_ms"]["p50"] <= found["e2e_ms"]["p50"]
    assert picture.read_text().count("<polyline") == 4


def test_a_server_is_measured_over_http() -> None:
    """Guards the way over HTTP: streams, depths, refusals by kind; and a key that is wrong."""
    with running(AsyncLLM(**SIZES, max_waiting=0)) as server:
        result = _run(*SMALL, "--url", server.url, "--warm-up", "1", "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.output.splitlines()[-1])["results"]
        assert found["served"] == "demo"
        refused = found["errors"].get("429 queue_full", 0)
        assert found["answered"] + refused == 6
        assert found["answered"] > 0
        assert 1 <= found["mean_depth"] <= 4
        assert set(found["errors"]) <= {"429 queue_full"}
        # A warm-up that fails says why, not only its kind.
        result = _run(*SMALL, "--url", server.url, "--exit-threshold", "9")
        assert "exit_threshold: 9.0 is out of range" in str(result.exception)
    result = _run(*SMALL, "--url", server.url)
    assert isinstance(result.exception, OptionError)
    assert result.exception.option == "--url"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rate", "0"), ("--plot", "times.gif"), ("--slo-ttft", "-1"), ("--length-scale", "nan")],
)
def test_wrong_options_are_refused_first(option: str, value: str) -> None:
    """Guards a load that runs for an hour before its last option is found wrong."""
    result = _run(option, value)
    assert isinstance(result.exception, OptionError)
    assert result.exception.option == option
