"""The engine over `flash`, a stand-in of either package behind it: the answers are the reference's
but for rounding. No GPU is needed; what the packages themselves compute is not tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flash_engine import FOUR, TINY, TWO, compare

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _triton() -> None:
    pytest.importorskip("triton")


@pytest.mark.parametrize(("version", "page"), [(FOUR, 16), (TWO, 256)])
def test_prompts_and_decode_rows(
    version: tuple[str, str], page: int, seed: int, tmp_path: Path
) -> None:
    """Cells beside decode rows, exits at several depths."""
    built = compare(version, page, seed, tmp_path, 40, 6, chunk_size=16)
    assert built.engine.counts.prompt_with_decode > 0


@pytest.mark.slow
def test_pages_of_two_chunks(seed: int, tmp_path: Path) -> None:
    """Requests of more than one page of 256: a table half as wide as the chunks would want it."""
    compare(TWO, 256, seed, tmp_path, 300, 6, chunk_size=64)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "page"), [(FOUR, 64), (TWO, 256)])
def test_rows_that_run_ahead(
    version: tuple[str, str], page: int, seed: int, tmp_path: Path
) -> None:
    """Several rows of a request at successive depths, each over the pages of its own plane; guesses
    run the coda without storing: a row sees its own key, which lies in no page."""
    own = {"model": TINY, "strategy": "pipeline", "draft_depth": 1}
    compare(version, page, seed, tmp_path, 40, 12, **own)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "page"), [(FOUR, 16), (TWO, 256)])
def test_policies_that_read_logits(
    version: tuple[str, str], page: int, seed: int, tmp_path: Path
) -> None:
    """The coda after every loop, without storing, also of a request's first position, before which
    there is no key at all."""
    compare(version, page, seed, tmp_path, 24, 8, model=TINY, policy="entropy")


@pytest.mark.slow
def test_forced_rows_with_holes(seed: int, tmp_path: Path) -> None:
    """A preempted request comes back in cells some of whose rows have left: a tile's length is then
    not its last row's, and rows that do nothing keep their places."""
    # Pages for a request and a half: five columns of four planes each, and the sentinel.
    own = {"num_pages": 1 + 4 * 8, "prefix_cache": False}
    built = compare(FOUR, 16, seed, tmp_path, 12, 60, **own)
    assert built.engine.counts.preemptions > 0
