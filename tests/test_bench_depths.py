"""Exit depths of `rlt bench depth`, and the bound on what they can save."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlt_core.bench.boundary import Boundary
from rlt_core.bench.depths import DISTRIBUTIONS, Full, Recorded, Synthetic
from rlt_core.bench.gpu_idle import covered
from rlt_core.contract.errors import OptionError


@pytest.mark.parametrize("loops", [2, 4, 32])
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_distributions_have_their_means(name: str, loops: int) -> None:
    """Guards the window, whose length follows from the mean, and depths out of range."""
    source = Synthetic(name=name, seed=3)
    drawn = np.stack([source.trace(i, loops, 50) for i in range(1000)])
    assert drawn.min() >= 1
    assert drawn.max() <= loops
    assert drawn.mean() == pytest.approx(source.mean(loops), rel=0.05)


def test_gate_is_2_4_of_4() -> None:
    """Guards the distribution that the project's aims are given for."""
    assert Synthetic(name="gate").mean(4) == pytest.approx(2.4)
    counts = np.bincount(Synthetic(name="gate").trace(0, 4, 100_000), minlength=5)[1:] / 100_000
    assert counts == pytest.approx([0.152, 0.398, 0.348, 0.102], abs=0.01)


def test_clustered_requests_differ_and_their_tokens_do_not() -> None:
    """Guards the one distribution in which depth belongs to the request."""
    requests = [Synthetic(name="clustered").trace(i, 4, 400) for i in range(50)]
    assert max(float(depths.std()) for depths in requests) < 0.6
    assert np.std([depths.mean() for depths in requests]) > 0.7


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_seed_and_request_decide(name: str) -> None:
    """Guards repeats against other depths, and requests against equal ones."""
    trace = Synthetic(name=name, seed=5).trace(7, 4, 64)
    assert (trace == Synthetic(name=name, seed=5).trace(7, 4, 64)).all()
    assert (trace != Synthetic(name=name, seed=6).trace(7, 4, 64)).any()
    others = [Synthetic(name=name, seed=5).trace(i, 4, 64) for i in range(4)]
    assert any((trace != other).any() for other in others)


def test_spread_leaves_in_every_tick() -> None:
    """Guards `--no-exit` against rows that all leave in one tick, as in a cohort."""
    traces = [Full(spread=True).trace(i, 4, 5) for i in range(8)]
    assert [t.tolist() for t in traces[:2]] == [[4, 1, 4, 4, 4], [4, 2, 4, 4, 4]]
    assert sorted(int(t[1]) for t in traces) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_recorded_depths_repeat(tmp_path: Path) -> None:
    """Guards both forms of a line, and requests beyond the last line."""
    file = tmp_path / "depths.jsonl"
    file.write_text('[1, 2]\n\n{"exit_depths": [4], "text": "x"}\n')
    found = Recorded(str(file), loops=4)
    assert [found.trace(i, 4, 3).tolist() for i in range(3)] == [[1, 2, 1], [4, 4, 4], [1, 2, 1]]
    assert found.mean(4) == pytest.approx(7 / 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no depths"),
        ("[1]\n{", "line 2 is no JSON"),
        ("[1, 5]", "line 1 has depth 5; the model has 4 loops"),
        ("[0]", "has depth 0"),
        ("[1.5]", "is no list of depths"),
        ("[]", "is no list of depths"),
        ('{"depths": [1]}', "no list `exit_depths`"),
    ],
)
def test_recorded_depths_that_are_wrong(tmp_path: Path, text: str, says: str) -> None:
    """Guards a file of another kind, or of a deeper model."""
    file = tmp_path / "depths.jsonl"
    file.write_text(text)
    with pytest.raises(OptionError, match=says) as caught:
        Recorded(str(file), loops=4)
    assert caught.value.option == "--depths"
    assert 1 <= len(str(caught.value).splitlines()) <= 4


def test_a_missing_record_is_an_option_error(tmp_path: Path) -> None:
    """Guards the traceback of a file that is not there."""
    with pytest.raises(OptionError, match="cannot be read"):
        Recorded(str(tmp_path / "none.jsonl"), loops=4)


def test_boundary_and_bound() -> None:
    """Guards the fit and the formula: a loop of 2 ms, a boundary of 1 ms (half a loop)."""
    found = Boundary.fit(full_ms=9.0, one_ms=3.0, loops=4)
    assert (found.loop_ms, found.boundary_ms, found.loops) == (2.0, 1.0, 0.5)
    assert found.bound(4, 2.5) == pytest.approx(4.5 / 3.0)
    assert found.bound(4, 4) == 1.0


def test_a_boundary_below_zero_is_none() -> None:
    """Guards a bound above D / mean depth, out of noise."""
    found = Boundary.fit(full_ms=9.0, one_ms=2.0, loops=4)
    assert found.boundary_ms == 0.0
    assert found.bound(4, 2) == 2.0


def test_covered_time_counts_overlaps_once() -> None:
    """Guards the GPU's idle share: kernels on two streams would hide an idle GPU."""
    spans = [(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.0)]
    events = [SimpleNamespace(time_range=SimpleNamespace(start=a, end=b)) for a, b in spans]
    assert covered(events) == 4.0
    assert covered([]) == 0.0
