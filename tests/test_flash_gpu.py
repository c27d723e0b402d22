"""`flash` over a stand-in on a GPU: captured ticks, the kernel that writes, answers near the exact
backend's. What the packages themselves compute is not tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import DEVICE
from tests.flash_engine import FOUR, OURO, TINY, TWO, compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _on_the_gpu() -> None:
    if not DEVICE.startswith("cuda"):
        pytest.skip("RLT_TEST_DEVICE=cuda runs it (make test-gpu)")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(("version", "page"), [(FOUR, 64), (TWO, 256)])
@pytest.mark.parametrize(("model", "strategy"), [(OURO, "refill"), (TINY, "pipeline")])
def test_captured_ticks(
    version: tuple[str, str],
    page: int,
    model: str,
    strategy: str,
    graphs: bool,
    seed: int,
    tmp_path: Path,
) -> None:
    """Lengths that are read when a tick is captured, tables of another launch, padding that is
    read as a row; a write that the package starts in front of."""
    own = {"model": model, "strategy": strategy, "draft_depth": 1 if model == TINY else None}
    own |= {"dtype": "bfloat16", "policy": "fixed", "graphs": graphs, "chunk_size": 32}
    compare(version, page, seed, tmp_path, 90, 20, **own)
