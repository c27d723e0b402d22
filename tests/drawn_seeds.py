"""Seeds that requests without one draw: in a test the same in every run, so that none is unlucky.

What a request draws decides its tokens, and a stop id among them ends it early: a test that leaves
that to chance fails once in some hundred runs, on somebody else's machine. In the test's own
process the seeds come from the test's name. A process that a test starts draws its own, so its
command line must leave nothing to chance.
"""

from __future__ import annotations

import random
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rlt_core.api import requests

_SETTLED = ("--seed", "--temperature")


def seeds_of(nodeid: str) -> random.Random:
    """Where the seeds of one test come from."""
    return random.Random(zlib.crc32(nodeid.encode()))


def leaves_to_chance(command: object) -> bool:
    """Whether it is a command line that has rlt generate, with neither a seed nor a temperature."""
    if not isinstance(command, Sequence) or isinstance(command, str):
        return False
    words = [str(word) for word in command]
    if not any(word == "rlt_core.cli" or word.endswith("/rlt") for word in words[:4]):
        return False
    return "run" in words[:5] and not any(word.startswith(_SETTLED) for word in words)


@pytest.fixture(autouse=True)
def drawn_seeds(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int]]:
    """The seeds that this test's requests drew so far; printed when it is over.

    The marker `chance` is for a test to whose commands the drawn tokens do not matter.
    """
    source, drawn = seeds_of(request.node.nodeid), list[int]()

    def draw() -> int:
        drawn.append(source.getrandbits(requests.SEED_BITS))
        return drawn[-1]

    monkeypatch.setattr(requests, "draw_seed", draw)
    if request.node.get_closest_marker("chance") is None:
        monkeypatch.setattr(subprocess, "Popen", _Settled)
    yield drawn
    if drawn:
        print(f"drawn seeds {drawn}")


class _Settled(subprocess.Popen[Any]):
    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if leaves_to_chance(args):
            reason = "give --seed or --temperature 0, or mark the test `chance`"
            raise AssertionError(f"a test leaves tokens to chance: {args}\n{reason}")
        super().__init__(args, *more, **options)
