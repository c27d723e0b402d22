"""Huginn in the engine: the authors' tokens under any schedule, each request's start latents."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlt_core.kv.accounting import request_pages
from rlt_core.runtime.table_file import read_table
from rlt_core.schedule.request import EngineRequest
from tests.dense import Options
from tests.engines import Answer, Built, Setup, build, collect, greedy, run_alone, run_together
from tests.huginn import MODELS, PROMPTS, expected
from tests.reference import Exit, generate
from tests.selection import mostly_slow
from tests.test_reference import COMBINATIONS, wide_model
from tests.test_reference import close as close_rows

# Many ticks each: seconds on a quiet machine, minutes on a busy one.
pytestmark = pytest.mark.timeout(300)

OUTPUTS, LOOPS = 24, 4
ZERO: dict[str, Any] = {"state_scale": 0.0}
WARM: dict[str, Any] = {**ZERO, "warm_start": True}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the golden start latents, a file for each model and prompt."""
    folder = tmp_path_factory.mktemp("tables")
    for name in MODELS:
        for prompt in PROMPTS:
            found = {"state_table": expected(name)[f"{prompt}.state_table"]}
            save_file(found, folder / f"{name}.{prompt}.safetensors")
    return folder


def golden(
    request_id: int, name: str, prompt: str, kind: str, folder: Path, outputs: int = OUTPUTS
) -> EngineRequest:
    """The request of a golden generation: `kind` is gen_state, gen_zero or gen_warm."""
    fields: dict[str, Any] = {"options": WARM if kind == "gen_warm" else ZERO}
    if kind == "gen_state":
        file = read_table("state_table", str(folder / f"{name}.{prompt}.safetensors")).file
        fields = {"tables": {"state_table": file}}
    ids = expected(name)[f"{prompt}.ids"].tolist()
    setup = Setup(model=name, policy="fixed")
    return greedy(request_id, ids, outputs, setup, loops=LOOPS, **fields)


@lru_cache(maxsize=6)
def alone(name: str, prompt: str, kind: str, folder: Path) -> Answer:
    """What a golden request gets with nothing else in the engine; no test changes it."""
    built = build(Setup(model=name, policy="fixed"))
    return run_alone(built, golden(0, name, prompt, kind, folder))


def same(found: Answer, wanted: Answer, outputs: int | None = None) -> bool:
    """The same tokens, depths and bits; `outputs`: as the first so many of `wanted`."""
    known = (wanted.tokens[:outputs], wanted.depths[:outputs])
    logits = zip(found.logits, wanted.logits[:outputs], strict=True)
    return (found.tokens, found.depths) == known and all(
        a.tobytes() == b.tobytes() for a, b in logits
    )


@pytest.mark.parametrize("name", mostly_slow(MODELS, "huginn_b"))
@pytest.mark.parametrize("kind", mostly_slow(["gen_state", "gen_zero", "gen_warm"], "gen_warm"))
def test_golden_generation(name: str, kind: str, tables: Path) -> None:
    """Tokens of the authors' code, and its logits where they are recorded (A47, A51, A52)."""
    built, wanted = build(Setup(model=name, policy="fixed")), expected(name)
    requests = [golden(i, name, prompt, kind, tables) for i, prompt in enumerate(PROMPTS)]
    answers = run_together(built, requests)
    for i, prompt in enumerate(PROMPTS):
        assert answers[i].error == ""
        assert answers[i].tokens == wanted[f"{prompt}.{kind}.ids"].tolist(), prompt
        assert answers[i].depths == [LOOPS] * OUTPUTS
        if kind != "gen_warm":
            close_rows(answers[i].logits, wanted[f"{prompt}.{kind}.logits"])


# Tokens of each prompt by chunk size: all that are recorded for one of them.
BY_CHUNK = {1: 10, 7: OUTPUTS, 64: 10}
# Every pair of a model, a chunk size and a page size.
CASES = [
    (name, chunk, (4, 16)[(i + j) % 2])
    for i, name in enumerate(MODELS)
    for j, chunk in enumerate(BY_CHUNK)
]
# Each way to start a row, and each length.
TOGETHER = (("p0", "gen_warm"), ("p1", "gen_state"), ("p2", "gen_zero"))


@pytest.mark.parametrize(("name", "chunk_size", "page_size"), mostly_slow(CASES))
def test_prompts_together_in_the_smallest_pool(
    name: str, chunk_size: int, page_size: int, tables: Path
) -> None:
    """Chunks, pages, parking, preemption and neighbours with other options must not change a
    token of the authors' own code, nor a bit of what a request gets alone (A47, A48)."""
    setup = Setup(model=name, policy="fixed", chunk_size=chunk_size, page_size=page_size)
    outputs = BY_CHUNK[chunk_size]
    requests = [golden(i, name, *case, tables, outputs) for i, case in enumerate(TOGETHER)]
    longest = max(len(request.prompt) for request in requests)
    pages = request_pages(build(setup).kv, LOOPS, longest, longest + outputs - 1) + 1
    small = build(replace(setup, num_pages=pages))
    together = run_together(small, requests)
    for i, (prompt, kind) in enumerate(TOGETHER):
        wanted = expected(name)[f"{prompt}.{kind}.ids"].tolist()[:outputs]
        assert together[i].tokens == wanted, TOGETHER[i]
        assert same(together[i], alone(name, prompt, kind, tables), outputs), TOGETHER[i]
    assert small.scheduler.pages.num_free == small.scheduler.pages.num_usable


def random_prompt(seed: int, length: int = 6) -> list[int]:
    """Token ids below every golden vocabulary."""
    prompt: list[int] = np.random.default_rng(seed).integers(0, 144, length).tolist()
    return prompt


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_loops_from_one_to_beyond_the_trained_ones(name: str, seed: int) -> None:
    """Requests of 1, 4, 6 (trained) and 8 loops in one engine, each as the reference says; the
    boundary tracks keep one plane whatever the number (A52)."""
    setup, prompt = Setup(model=name, policy="fixed", page_size=4), random_prompt(seed)
    loops = (1, 4, 6, 8)
    built = build(setup)
    found = run_together(built, [greedy(n, prompt, 4, setup, loops=n) for n in loops])
    for n in loops:
        wanted = generate(wide_model(name), prompt, 4, Exit(loops=n))
        assert found[n].tokens == wanted.tokens
        assert found[n].depths == [n] * 4
        close_rows(found[n].logits, torch.stack(wanted.logits))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("layout", "mode"), COMBINATIONS)
def test_against_the_reference(name: str, layout: str, mode: Any, seed: int) -> None:
    """Exits at every depth in every layout and mode: prelude, core and coda each see what the
    rule says, with random starts, zeros and warm starts side by side (A53)."""
    setup = Setup(model=name, layout=layout, mode=mode, policy="trace", chunk_size=3, page_size=4)
    script, prompt = [6, 1, 3, 2, 6, 1], random_prompt(seed)
    given = {
        0: Options(state_seed=seed),
        1: Options(values=ZERO),
        2: Options(values=WARM, chains=True),
        3: Options(values={"state_scale": 0.5, "warm_start": True}, chains=True, state_seed=7),
    }
    requests = [
        greedy(
            i,
            prompt,
            len(script),
            setup,
            loops=6,
            trace=np.array(script, np.int32),
            state_seed=options.state_seed,
            options=dict(options.values),
        )
        for i, options in given.items()
    ]
    found = run_together(build(setup), requests)
    exits = Exit(policy="trace", trace=script, loops=6)
    for i, options in given.items():
        wanted = generate(
            wide_model(name),
            prompt,
            len(script),
            exits,
            layout=layout,
            full=mode == "full",
            options=options,
        )
        assert (found[i].tokens, found[i].depths) == (wanted.tokens, script), i
        close_rows(found[i].logits, torch.stack(wanted.logits))


def disturbed(built: Built, request: EngineRequest, at_step: int) -> Answer:
    """The answer of a request that is preempted once, `at_step` steps after it came."""
    answers: dict[int, Answer] = {}
    built.engine.add(request)
    for step in range(10_000):
        if step == at_step:
            built.scheduler.preempt(request.request_id)
        if not built.engine.has_work:
            return answers[request.request_id]
        collect(answers, built.engine.step())
    raise AssertionError("the engine never ends")


@pytest.mark.parametrize("warm", mostly_slow([False, True]))
def test_the_start_state_is_the_request_s_own(warm: bool, seed: int) -> None:
    """The same alone, in a batch of five, after other traffic and after a preemption; another
    state seed gives other logits; neither the sampling seed nor torch's changes a bit (A47)."""
    setup, prompt = Setup(model="huginn_a", policy="fixed", num_slots=5), random_prompt(seed)
    options = {"warm_start": warm}
    request = greedy(0, prompt, 8, setup, state_seed=3, options=options)
    wanted = run_alone(build(setup), request)
    built = build(setup)
    torch.manual_seed(seed)
    seeds = {0: 3, 1: 3, 2: 4, 3: 2**40, 4: -9}
    batch = [replace(request, request_id=i, state_seed=s, seed=i) for i, s in seeds.items()]
    together = run_together(built, batch)
    assert [same(together[i], wanted) for i in seeds] == [True, True, False, False, False]
    assert same(run_alone(built, replace(request, request_id=9)), wanted)
    for step in (3, 20, 40):
        preempted = disturbed(built, replace(request, request_id=10 + step), step)
        assert same(preempted, wanted), step


@pytest.mark.slow
def test_the_authors_tokens_while_others_are_guessed(tables: Path) -> None:
    """Guards requests that read the state before theirs under strategy `pipeline`: nothing is
    guessed for them, and their neighbours are guessed for (their tokens are the authors' too)."""
    name = "huginn_b"
    built = build(Setup(model=name, policy="fixed", strategy="pipeline", draft_depth=2))
    requests = [golden(i, name, *kind, tables, 12) for i, kind in enumerate(TOGETHER)]
    answers = run_together(built, requests)
    for i, (prompt, kind) in enumerate(TOGETHER):
        assert same(answers[i], alone(name, prompt, kind, tables), 12)
    warm = build(Setup(model=name, policy="fixed", strategy="pipeline", draft_depth=2))
    run_alone(warm, requests[0])
    assert warm.engine.counts.guesses_checked == 0
