"""Engines whose attention is `flash`, over a stand-in or the package that is installed, beside ones
with the reference attention.

On a CPU keys and values are written in torch, and not by the kernel.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.contract import RopeSpec
from rlt_core.contract.protocols import PagedRows, Turn
from rlt_core.runtime.rope import RopeTable, apply_rope
from rlt_core.schedule.request import EngineRequest
from tests.engines import DEVICE, Answer, Built, Setup, build, greedy, plan_of, run_together
from tests.flash_stand_in import CALLS, install

FOUR, TWO = ("four", "4.0.0b3"), ("two", "2.8.3")
# Head size 16, which both packages take; tiny_b has grouped heads and a coda that keeps KV.
OURO, TINY = "ouro_a", "tiny_b"


def write_in_torch(
    q: Tensor, k: Tensor, v: Tensor, rows: PagedRows, turn: Turn | None, first: int
) -> Tensor:
    """What rlt_kernels.attention.paged.write_rows does with its kernel; `first` is 0."""
    assert first == 0
    position = (rows.key_len[:-1] - 1).clamp(min=0)
    if turn is not None:
        spec = RopeSpec(theta=1.0, dim=turn.dim, interleaved=turn.interleaved)
        cos, sin = RopeTable(spec, turn.cos, turn.sin).at(position)
        q, k = apply_rope(q, cos, sin, spec), apply_rope(k, cos, sin, spec)
    size, pool = rows.pool.shape[3], rows.pool[:, rows.unit]
    place = position % size
    if not pool.stride(2):  # one place stands for every position
        pool, place = pool[:, :, :1], torch.zeros_like(place)
    page = rows.pages[rows.page_row, position // size].long()
    live = rows.key_len[:-1] > 0
    for side, new in enumerate((k, v)):
        pool[page[live], side, place[live]] = new[live]
    return q


def build_flash(setup: Setup, patch: pytest.MonkeyPatch) -> Built:
    """The engine of a setup with `flash`, on any device: the stand-in must be installed."""
    from rlt_kernels.flash_library import flash_spec

    # Pages that the reference backend does not take are laid out after its plan was made.
    plan = plan_of(replace(setup, page_size=min(setup.page_size, 128)))
    choice = replace(plan.choice, page_size=setup.page_size)
    spec = replace(flash_spec(), devices=("cpu",), dtypes=("float32",))
    if DEVICE == "cpu":
        patch.setattr("rlt_kernels.attention.flash.write_rows", write_in_torch)
    return build(setup, plan=replace(plan, choice=choice, attention=spec))


def _requests(setup: Setup, seed: int, most: int, outputs: int) -> list[EngineRequest]:
    """Requests of one token to `most`; every other one may leave early."""
    draw = random.Random(seed)
    requests = []
    for i in range(5):
        length = draw.choice((1, 5, most)) if i % 2 else most - i
        prompt = [draw.randrange(3, 60) for _ in range(length)]
        late = 1.0 if setup.policy == "gate" else 0.05
        exits = {} if setup.policy == "fixed" else {"exit_threshold": late if i % 2 else 0.5}
        requests.append(greedy(i, prompt, outputs, setup, exit_params=exits))
    return requests


def compare(
    version: tuple[str, str] | None, page_size: int, seed: int, tmp: Path, *lengths: int, **own: Any
) -> Built:
    """Run the same requests on both; returns the engine with `flash`, over the package that is
    installed where no stand-in's version is given. lengths: of the longest prompt, and of the
    answers."""
    own = {"model": OURO, "max_len": sum(lengths) + 8, **own}
    reference = Setup(num_slots=3, num_places=128, **own)
    wanted = run_together(build(reference), _requests(reference, seed, *lengths))
    setup = replace(reference, page_size=page_size)
    stand_in = install(tmp / "site", version) if version else nullcontext()
    with stand_in, pytest.MonkeyPatch.context() as patch:
        built = build_flash(setup, patch)
        found = run_together(built, _requests(setup, seed, *lengths))
        assert version is None or {name for name, _, _ in CALLS} == {version[0]}
    assert found.keys() == wanted.keys()
    if setup.dtype == "float32":
        for number, answer in found.items():
            _same(answer, wanted[number], 1e-3)
    else:
        wide = replace(reference, dtype="float32", graphs=False)
        _as_near(found, wanted, run_together(build(wide), _requests(wide, seed, *lengths)))
    assert built.kv.page_size == page_size
    return built


def _as_near(found: dict[int, Answer], wanted: dict[int, Answer], right: dict[int, Answer]) -> None:
    """Logits no further from float32's than the reference's in the same dtype, whose noise a looped
    model carries from loop to loop: in the mean, with half as much again for chance."""
    noise, error = _distance(wanted, right), _distance(found, right)
    assert error < 1.5 * noise, f"logits are off by {error:.4f}, rounding alone by {noise:.4f}"


def _distance(found: dict[int, Answer], right: dict[int, Answer]) -> float:
    """Mean distance of the logits, of each request up to the first token that differs."""
    apart = []
    for number, answer in right.items():
        assert found[number].finish == answer.finish
        for i, logits in enumerate(answer.logits):
            apart.append(float(abs(found[number].logits[i] - logits).mean()))
            if found[number].tokens[i] != answer.tokens[i]:
                break
    return sum(apart) / len(apart)


def _same(found: Answer, wanted: Answer, most: float) -> None:
    """Logits to rounding, and the same tokens and depths, up to a token that two logits tie for."""
    assert found.finish == wanted.finish
    for i, logits in enumerate(wanted.logits):
        error = abs(found.logits[i] - logits).max()
        assert error < most, f"output {i}: logits differ by {error}"
        assert found.depths[i] == wanted.depths[i]
        if found.tokens[i] != wanted.tokens[i]:
            best, second = np.sort(logits)[:-3:-1]
            assert best - second < most, f"output {i} is another token"
            return
