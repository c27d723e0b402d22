"""Huginn's adaptive records: what the authors' own code does when every token leaves by itself.

In its default look-up a position that left early has no keys for deeper loops, which is layout
`no_fill`; with its look-up latest-m4 the last keys that a position wrote stand in, which is
`last_exited`. Every position goes through the engine as a forced row that asks the policy.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rlt_core.runtime.table_file import read_table
from rlt_core.schedule import residency
from rlt_core.schedule.forced import Forced, forced_rows
from rlt_core.schedule.request import EngineRequest
from tests.criteria import BY_STATE, CRITERIA
from tests.dense import Options
from tests.engines import GOLDEN, Setup, build, greedy, load_model, run_together
from tests.huginn import MODELS, PROMPTS, expected
from tests.reference import Pass, Text, run_pass
from tests.selection import mostly_slow
from tests.test_reference import close

LOOPS = 6
ZERO: dict[str, Any] = {"state_scale": 0.0}
# The authors' names of the policies.
NAMES = {
    "latent": "latent-diff",
    "cosine": "cosine",
    "entropy": "entropy-diff",
    "kl": "kl",
    "minp_kl": "minp-kl",
    "argmax": "argmax-stability",
}
# Record, layout, whether the start latents are stored ones.
RECORDS = {
    "ada_zero": ("no_fill", False),
    "ada_state": ("no_fill", True),
    "ada_latest": ("last_exited", False),
}
# Every pair of a policy and a record; models take turns, but the authors' latest-m4 works with the
# published counts of layers only.
CASES = [
    ("huginn_b" if record == "ada_latest" else MODELS[(i + j) % 2], record, policy)
    for i, policy in enumerate(NAMES)
    for j, record in enumerate(RECORDS)
]


@lru_cache(maxsize=2)
def thresholds(name: str) -> dict[str, list[float]]:
    """By the authors' name of a policy."""
    text = (GOLDEN / name / "expected.json").read_text(encoding="utf-8")
    found: dict[str, list[float]] = json.loads(text)["settings"]["thresholds"]
    return found


def start(name: str, prompt: str, stored: bool, folder: Path) -> dict[str, Any]:
    """The request fields that choose the start latents."""
    if not stored:
        return {"options": ZERO}
    path = folder / f"{name}.{prompt}.safetensors"
    save_file({"state_table": expected(name)[f"{prompt}.state_table"]}, path)
    return {"tables": {"state_table": read_table("state_table", str(path)).file}}


def score(
    request_id: int, ids: list[int], threshold: float, fields: dict[str, Any]
) -> EngineRequest:
    """Every position of `ids` leaves by the policy; one more token makes the last one scored."""
    return EngineRequest(
        request_id=request_id,
        prompt=np.array([*ids, 0], np.int64),
        kind="score",
        loops=LOOPS,
        max_loops=LOOPS,
        exit_params={"exit_threshold": threshold},
        **fields,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "record", "policy"), mostly_slow(CASES, CASES[0]))
def test_every_position_leaves_where_the_authors_code_lets_it(
    name: str, record: str, policy: str, tmp_path: Path
) -> None:
    """Depths are the authors' at every position, all prompts and both thresholds together, and
    logits within 1e-4 where they are recorded: one wrong key moves both (A53)."""
    layout, stored = RECORDS[record]
    wanted, limits = expected(name), thresholds(name)[NAMES[policy]]
    setup = Setup(model=name, layout=layout, policy=policy, chunk_size=7, page_size=4, num_slots=6)
    cases = [(prompt, t) for prompt in PROMPTS for t in range(2)]
    requests = [
        score(i, wanted[f"{p}.ids"].tolist(), limits[t], start(name, p, stored, tmp_path))
        for i, (p, t) in enumerate(cases)
    ]
    answers = run_together(build(setup), requests)
    for i, (prompt, t) in enumerate(cases):
        key = f"{prompt}.{record}.{NAMES[policy]}.t{t}"
        scored = [answers[i].scored[position] for position in range(len(requests[i].prompt) - 1)]
        assert [depth for depth, _, _ in scored] == wanted[f"{key}.steps"].tolist(), key
        if f"{key}.logits" in wanted:
            close([logits for _, _, logits in scored], wanted[f"{key}.logits"])


def values_of(policy: str, run: Pass, depths: Tensor, position: int) -> list[float]:
    """The criterion at a position of a pass in which every position leaves at its depth."""
    deepest = int(depths[position])
    if policy in BY_STATE:
        return CRITERIA[policy](run.shown[: deepest + 1, position])
    found = []
    for depth in range(1, deepest + 1):
        reads = depths.clone()
        reads[position] = depth
        found.append(run.logits(reads)[position])
    return CRITERIA[policy](torch.stack(found))


@torch.no_grad()
def reference_run(name: str, ids: Tensor, depths: Tensor, layout: str = "no_fill") -> Pass:
    """All positions of `ids` from zero, each leaving at its depth."""
    text = Text(ids, 0, depths, depths, LOOPS)
    return run_pass(load_model(name)[1], text, layout, Options(values=ZERO))


@pytest.mark.parametrize("policy", NAMES)
def test_the_reference_has_the_authors_criteria(policy: str) -> None:
    """A reference with a fault of its own would bless the same fault in a policy."""
    wanted, prompt = expected("huginn_b"), "p1"
    for record in ("ada_zero", "ada_latest"):
        key = f"{prompt}.{record}.{NAMES[policy]}.t0"
        depths, values = wanted[f"{key}.steps"], wanted[f"{key}.values"]
        run = reference_run("huginn_b", wanted[f"{prompt}.ids"], depths, RECORDS[record][0])
        for position in (0, 3, 9, 16):
            found = values_of(policy, run, depths, position)
            aim = values[position, : len(found)]
            torch.testing.assert_close(
                torch.tensor(found).float(), aim, atol=1e-4, rtol=1e-4, equal_nan=True
            )


def first_pass(policy: str, name: str, ids: Tensor) -> list[float]:
    """The criterion of a whole prompt after each loop: of its last position, or the mean of all."""
    full = torch.full_like(ids, LOOPS)
    run = reference_run(name, ids, full)
    if policy == "kl":
        # Coda KV of earlier positions is of the same depth: all stop together.
        shown = torch.stack(
            [run.logits(torch.full_like(ids, depth))[-1] for depth in range(1, LOOPS + 1)]
        )
        return CRITERIA["kl"](shown)
    each = [CRITERIA[policy](run.shown[:, position]) for position in range(len(ids))]
    return np.mean(each, axis=0).tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["latent", "kl"])
@pytest.mark.parametrize("name", MODELS)
def test_adaptive_generation(name: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 tokens generated by the policy itself, after a prompt whose positions all left at one
    depth, as the authors' first pass does; that depth is checked against the reference."""
    wanted, threshold = expected(name), thresholds(name)[NAMES[policy]][0]
    keys = [f"{prompt}.ada_gen.{NAMES[policy]}" for prompt in PROMPTS]
    depths = [wanted[f"{key}.steps"].tolist() for key in keys]
    prompts = [wanted[f"{prompt}.ids"] for prompt in PROMPTS]
    for ids, deep in zip(prompts, depths, strict=True):
        below = [value < threshold for value in first_pass(policy, name, ids)]
        assert deep[0] == (below.index(True) + 1 if any(below) else LOOPS)

    def shallow(request: EngineRequest, *args: Any, **fields: Any) -> Forced:
        forced = forced_rows(request, *args, **fields)
        forced.exit_at = np.full(len(forced), depths[request.request_id][0], np.int64)
        return forced

    monkeypatch.setattr(residency, "forced_rows", shallow)
    setup = Setup(model=name, layout="no_fill", policy=policy, page_size=4)
    params = {"exit_threshold": threshold}
    requests = [
        greedy(i, ids.tolist(), len(deep), setup, options=ZERO, exit_params=params)
        for i, (ids, deep) in enumerate(zip(prompts, depths, strict=True))
    ]
    answers = run_together(build(setup), requests)
    for i, key in enumerate(keys):
        assert answers[i].depths == depths[i], key
        assert answers[i].tokens == wanted[f"{key}.ids"].tolist(), key
