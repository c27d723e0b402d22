"""Padded ticks as a GPU captures them, run here without a capture: the same answers, to the bit.

On a CPU `Executor.capture` makes the same ticks and calls them (runtime.replay): what the inbox
holds, the padding and the choice among the captured ticks are the ones of a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.runtime.batch import NUM_PROMPT_COLUMNS, PromptRows
from rlt_core.runtime.fused_ticks import FusedTicks
from rlt_core.runtime.graphs import prompt_counts, row_counts
from rlt_core.runtime.mixed_inputs import MixedInputs
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.tick_rows import Batch, TickTensors
from rlt_core.schedule.request import EngineRequest
from tests.engines import Answer, Built, Setup, build, greedy, run_together

SETUPS = (
    Setup(model="ouro_b", policy="gate", num_slots=3, chunk_size=7),
    Setup(model="ouro_b", policy="gate", strategy="cohort", num_slots=5, num_places=100),
    Setup(model="ouro_a", mode="full", policy="gate", num_slots=3, ticks_in_flight=1),
    Setup(model="ouro_b", layout="last_step", policy="fixed", num_slots=2, chunk_size=16),
    Setup(model="ouro_b", layout="shared", policy="gate", num_slots=3, page_size=4),
    Setup(model="ouro_b", layout="no_fill", policy="gate", num_slots=3, leave_places=1),
    Setup(model="ouro_b", policy="kl", num_slots=3, min_leave=2),
    Setup(model="tiny_b", policy="gate", num_slots=3, chunk_size=7),
    Setup(
        model="ouro_b", policy="gate", num_slots=20
    ),  # fewer decode rows than slots, captured too
    Setup(model="tiny_a", policy="trace", num_slots=3),
    Setup(model="ouro_b", policy="gate", strategy="pipeline", num_slots=3, chunk_size=7),
    Setup(model="tiny_b", policy="gate", strategy="pipeline", mode="full", num_slots=5),
    Setup(model="ouro_b", policy="gate", strategy="adaptive", num_slots=3),
    Setup(model="ouro_b", policy="fixed", prompts="wavefront", num_slots=3, chunk_size=4),
)


def captured(built: Built) -> tuple[Built, Counter[str]]:
    """The engine with its ticks captured, and how many of each kind run from then on."""
    built.executor.capture()
    graphs, ran = built.executor._graphs, Counter[str]()
    assert graphs is not None
    inner = graphs.run

    def run(tick: Any, needs: Any) -> Any:
        found = inner(tick, needs)
        kind = "mixed" if len(tick.prompt) else "decode"
        ran[kind if found is not None else f"{kind}, eager"] += 1
        return found

    graphs.run = run  # type: ignore[method-assign]  # watched
    return built, ran


def watch_padding(built: Built) -> None:
    """Fail where a row of the sentinel slot enters or runs. Its writes would not show here: the
    CPU's attention leaves zeros on the sentinel page, a GPU's does what it is told."""
    program = built.executor.program
    inner, sentinel = program._prelude, built.executor.slots.sentinel

    def prelude(t: TickTensors, batch: Batch) -> None:
        padding = batch.slot == sentinel
        assert not (padding & batch.enters).any(), "padding enters"
        assert not (padding & batch.live).any(), "padding runs"
        inner(t, batch)

    program._prelude = prelude  # type: ignore[method-assign]  # watched


def requests(setup: Setup, seed: int = 3) -> list[EngineRequest]:
    """More than slots, prompts of several chunks, sampled and greedy, one with penalties."""
    draw = np.random.default_rng(seed)
    made = []
    for i, length in enumerate((1, 9, 17, 4, 25, 3)):
        fields: dict[str, Any] = {}
        if setup.policy in ("gate", "kl"):
            threshold = (0.3, 0.6, 0.9)[i % 3]
            fields["exit_params"] = {"exit_threshold": threshold}
        if setup.policy == "trace":
            fields["trace"] = draw.integers(1, 4, 40).astype(np.int32)
        if i % 3 == 1:
            fields |= {"temperature": 0.8, "seed": i, "top_k": (0, 4)[i % 2]}
        if i == 3:
            fields |= {"repetition_penalty": 1.3, "stop_ids": (1, 2, 3)}
        prompt = draw.integers(0, 40, length).tolist()
        made.append(greedy(i, prompt, 5, setup, **fields))
    return made


def same(found: Answer, wanted: Answer) -> bool:
    fields = ("tokens", "depths", "finish", "logprobs")
    if any(getattr(found, name) != getattr(wanted, name) for name in fields):
        return False
    pairs = zip(found.logits, wanted.logits, strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: f"{s.model}-{s.layout}-{s.policy}")
def test_captured_ticks_change_nothing(setup: Setup) -> None:
    """A padded row that enters, writes, counts or takes a place; an inbox that mixes up rows,
    tiles, pages or limits; a prompt that is captured though its rows ask more than that."""
    plain = build(setup)
    wanted = run_together(plain, requests(setup))
    built, ran = captured(build(setup))
    watch_padding(built)
    found = run_together(built, requests(setup))
    print(dict(ran))
    # what the ticks told of themselves: depths, early exits, parked rows
    assert built.engine.counts == plain.engine.counts
    assert ran["decode"], ran
    # A model that reads predecessors hands states on after a prompt, which is not captured.
    assert ran["mixed"] or setup.model == "tiny_a", ran
    assert "decode, eager" not in ran
    assert {id_: same(found[id_], wanted[id_]) for id_ in wanted} == dict.fromkeys(wanted, True)
    pool = built.executor.pool.storage
    assert not pool[0].any(), "padding wrote to the sentinel page"


class Counted:
    """An operator that leaves rows past num_rows unwritten, and what it was given."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        self.run, self.seen = run, set[tuple[int, int]]()

    def __call__(self, x: Tensor, *args: Tensor, num_rows: Tensor | None = None) -> Tensor:
        out = self.run(x, *args)
        if num_rows is not None:
            self.seen.add((int(num_rows), len(x)))
            out[int(num_rows) :] = torch.nan
        return out


def counted(built: Built) -> Counted:
    """The engine with products that leave rows unwritten; its `linear`. Before a capture."""
    program = built.executor.program
    ops = program.services.ops
    linear, gated = Counted(ops.linear), Counted(ops.linear_silu_mul)
    both: dict[str, Any] = {"linear": linear, "linear_silu_mul": gated}
    limited = replace(ops, counted=frozenset(both), **both)
    program.services = replace(program.services, ops=limited)
    program.counts_entering = True
    return linear


@pytest.mark.parametrize("strategy", ["refill", "pipeline"])
def test_padding_is_left_out_of_products(strategy: str) -> None:
    """Padding that is computed: 2048 prompt rows and one of padding take a row tile more on a GPU,
    and 300 cost what 1024 do. Rows that are left out though they matter, or read though they are
    left out."""
    setup = Setup(model="ouro_b", policy="gate", strategy=strategy, num_slots=3, chunk_size=7)
    wanted = run_together(build(setup), requests(setup))
    built = build(setup)
    linear = counted(built)
    built, ran = captured(built)
    found = run_together(built, requests(setup))
    assert {id_: same(found[id_], wanted[id_]) for id_ in wanted} == dict.fromkeys(wanted, True)
    seen = {(num, rows) for num, rows in linear.seen if 0 < num < rows}
    assert ran["mixed"]
    assert seen
    if strategy == "refill":
        # nothing but prompt rows: the first prompts have no decode rows beside them
        assert 1 + 7 + 7 in {num for num, _ in seen}


@pytest.mark.parametrize("captures", [False, True])
def test_a_prelude_is_left_out_where_nobody_enters(captures: bool) -> None:
    """Guards prelude layers that run for rows that are past them, in every loop; and rows that
    enter and are left out, as the last one of a tick."""
    setup = Setup(model="tiny_b", policy="gate", num_slots=3, chunk_size=7)
    wanted = run_together(build(setup), requests(setup))
    built = build(setup)
    linear = counted(built)
    if captures:
        built, _ = captured(built)
    found = run_together(built, requests(setup))
    assert {id_: same(found[id_], wanted[id_]) for id_ in wanted} == dict.fromkeys(wanted, True)
    assert 0 in {num for num, _ in linear.seen}
    assert any(0 < num < rows for num, rows in linear.seen)


def test_scores_and_replays_run_eagerly() -> None:
    """Rows whose logprobs or next tokens are known are no plain prompt: captured, they would lose
    what they were run for."""
    setup = Setup(model="ouro_b", policy="gate", num_slots=2)
    params = {"exit_params": {"exit_threshold": 0.5}}
    text = np.arange(3, 12)
    scored = replace(
        greedy(0, [1], 1, setup, **params), prompt=text, kind="score", prompt_len=4, max_tokens=0
    )
    wanted = run_together(build(setup), [scored])
    built, ran = captured(build(setup))
    found = run_together(built, [scored])
    assert ran["mixed, eager"]
    assert found[0].scored.keys() == wanted[0].scored.keys()
    assert all(found[0].scored[p][:2] == wanted[0].scored[p][:2] for p in wanted[0].scored)


def test_row_counts_hold_every_number() -> None:
    """A tick between two captured counts, or above the last, would find none."""
    assert row_counts(1) == [1]
    assert row_counts(6) == [1, 2, 4, 6]
    assert row_counts(256) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert prompt_counts(40) == [40]
    assert prompt_counts(64) == [64]
    assert prompt_counts(2048) == [64, 256, 1024, 2048]
    assert prompt_counts(3000) == [64, 256, 1024, 2048, 3000]
    assert prompt_counts(9000) == [64, 256, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("strategy", ["refill", "pipeline"])
def test_graphs_are_few_and_larger_ticks_run_eagerly(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards A71: a graph for each number of rows, however many loops a model has; ticks of more
    prompt rows than the largest graph give the same answers."""
    graphs = {}
    for model in ("ouro_b", "tiny_b", "nanbeige_a"):
        built, _ = captured(build(Setup(model=model, policy="fixed", strategy=strategy)))
        assert built.executor._graphs is not None
        graphs[built.plan.max_depth] = len(built.executor._graphs._replays)
    assert len(graphs) == 3
    assert len(set(graphs.values())) == 1, graphs
    setup = Setup(model="ouro_b", policy="fixed", strategy=strategy, num_slots=2)
    wanted = run_together(build(setup), requests(setup))
    monkeypatch.setattr("rlt_core.runtime.graphs.PROMPT_ROWS", (16,))
    built, ran = captured(build(setup))
    found = run_together(built, requests(setup))
    assert ran["mixed, eager"]
    assert ran["mixed"]
    assert "decode, eager" not in ran
    assert {id_: same(found[id_], wanted[id_]) for id_ in wanted} == dict.fromkeys(wanted, True)


def test_a_table_too_many_leaves_the_captured_ticks_alone() -> None:
    """A tensor that gives way to a larger one is not the one that graphs read."""
    setup = Setup(model="tiny_a", policy="fixed", num_slots=2)
    built, ran = captured(build(setup))
    options = built.executor.slots.options
    assert options is not None
    options.version += 1
    run_together(built, [greedy(0, [3, 4], 3, setup)])
    assert set(ran) == {"decode, eager", "mixed, eager"}


def test_which_ticks_are_fused() -> None:
    """Masks that the head does not wait for; a mask variant of a tick of prompts alone, which needs
    no head and is captured in no other; prompts that hand states on, or whose outputs are known, in
    steps that know nothing of that."""
    setup = Setup(model="ouro_b", policy="fixed", num_slots=2)
    built, _ = captured(build(setup))
    fused = FusedTicks(*(cast(Any, name) for name in ("decode", "mixed")))
    graphs = built.executor._graphs
    assert graphs is not None
    found: dict[tuple[bool, bool, bool], Any] = {
        (type(inputs) is MixedInputs, tensors.leaves, needs.masks): fused.of(tensors, needs)
        for inputs, rows, _ in graphs._kinds
        for tensors in [inputs.tensors(rows[0])]
        for needs in (Needs(), Needs(masks=True))
    }
    assert found == {
        (False, True, False): "decode",
        (False, True, True): None,
        (True, True, False): "mixed",
        (True, True, True): None,
        (True, False, False): "mixed",
        (True, False, True): "mixed",
    }
    columns = np.zeros((NUM_PROMPT_COLUMNS, 2), np.int64)
    prompt = PromptRows(tick=0, columns=columns, cell_start=np.array([0, 2]))
    eager = built.executor.inputs.of(0, np.zeros(0, np.int64), prompt, 1)
    assert fused.of(eager, Needs()) is None
