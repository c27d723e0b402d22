"""What every test gets: one thread for torch, and a seed that is printed."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from pathlib import Path

import pytest

from tests.drawn_seeds import drawn_seeds as drawn_seeds
from tests.fresh import built as built
from tests.fresh import fresh as fresh
from tests.recording import pytest_terminal_summary as pytest_terminal_summary
from tests.recording import recorded_slow

RECORDS = Path(__file__).parent.parent / "docs/records"

# Read by torch when it is first imported: one thread, so that the tests of a two-core machine
# do not wait for each other. A test of thread counts sets its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


_LONG = ("test_equality", "test_interpreted", "test_tutorial", "test_plugin_new")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--load-seconds", type=float, default=30.0, help="how long tests/load lasts")
    parser.addoption("--seed", type=int, default=None, help="the seed of all random tests")


def pytest_collection() -> None:
    """Imports make a million objects that stay: a quarter of their time went into looking for
    garbage among them. Put out of the collector's sight when all are there."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that a whole run found to be slow are marked so, for `make test-fast`. Those of minutes
    come first: as the last ones they would run alone."""
    items.sort(key=lambda item: item.path.stem not in _LONG)
    slow = recorded_slow(RECORDS)
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's own seed, the same in every run unless --seed is given; shown on failure."""
    given = request.config.getoption("--seed")
    value = given if given is not None else zlib.crc32(request.node.nodeid.encode())
    print(f"seed {value} (again: --seed {value})")
    return int(value)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Undo a thread count that an earlier test set; torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
