"""Each layout and exit mode against its brute-force reference, and both against golden data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlt_core.contract.protocols import WeightedModel
from rlt_core.plugins.plan import ExitMode
from rlt_core.schedule.request import EngineRequest
from rlt_core.testing.tiny_model import TinyModel
from tests.dense import NO_OPTIONS, Options
from tests.engines import (
    GOLDEN,
    MODELS,
    Answer,
    Setup,
    build,
    collect,
    greedy,
    load_model,
    run_together,
)
from tests.reference import RULES, Exit, Generated, Text, generate, run_pass
from tests.selection import mostly_slow

OUROS = ("ouro_a", "ouro_b")
NANBEIGES = ("nanbeige_a", "nanbeige_b", "nanbeige_c")
THRESHOLDS = {"t03": 0.3, "t05": 0.5, "t07": 0.7, "t09": 0.9}
PROMPTS = ("p0", "p1", "p2")
NUM_OUTPUTS = 24
TOLERANCE = 1e-4
COMBINATIONS: list[tuple[str, ExitMode]] = [
    ("last_exited", "skip"),
    ("last_exited", "full"),
    ("shared", "skip"),
    ("last_step", "skip"),
]


@lru_cache(maxsize=4)
def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / name / "expected.safetensors")


@lru_cache(maxsize=8)
def wide_model(name: str) -> WeightedModel:
    """The same weights in float64: the reference's own rounding must not count."""
    shape, model = load_model(name)
    wide = type(model)(shape, device=torch.device("cpu"), dtype=torch.float64)  # type: ignore[call-arg]
    for key, tensor in wide.weight_table().items():
        tensor.copy_(model.weight_table()[key])
    return wide


def close(found: object, wanted: Tensor) -> None:
    torch.testing.assert_close(
        torch.as_tensor(np.stack(found) if isinstance(found, list) else found).double(),
        wanted.double(),
        atol=TOLERANCE,
        rtol=0,
    )


@pytest.mark.parametrize(
    ("name", "output", "threshold"),
    mostly_slow(
        [("ouro_a", "gen", 1.0), ("ouro_b", "gen_t05", 0.5), ("nanbeige_c", "gen", 1.0)],
        ("ouro_b", "gen_t05", 0.5),
    ),
)
def test_the_full_reference_gives_the_authors_tokens(
    name: str, output: str, threshold: float
) -> None:
    """A reference with a fault of its own would bless the same fault in the engine (A2)."""
    wanted, (shape, model) = golden(name), load_model(name)
    exits = Exit(policy="gate", threshold=threshold, loops=shape.loops)
    found = generate(model, wanted["p0.ids"].tolist(), NUM_OUTPUTS, exits, full=True)
    assert found.tokens == wanted[f"p0.{output}.ids"].tolist()
    if output == "gen":
        close([row.numpy() for row in found.logits], wanted["p0.gen.logits"])
    else:
        assert [depth - 1 for depth in found.depths] == wanted[f"p0.{output}.steps"].tolist()


@pytest.mark.parametrize("name", mostly_slow([*OUROS, *NANBEIGES], "ouro_b"))
def test_golden_generation_at_full_depth(name: str) -> None:
    """All golden prompts together give the authors' tokens and logits (A1, A2)."""
    setup = Setup(model=name, policy="fixed", chunk_size=7, page_size=4)
    requests = [
        greedy(i, golden(name)[f"{p}.ids"].tolist(), NUM_OUTPUTS, setup)
        for i, p in enumerate(PROMPTS)
    ]
    answers = run_together(build(setup), requests)
    for i, p in enumerate(PROMPTS):
        assert answers[i].tokens == golden(name)[f"{p}.gen.ids"].tolist()
        close(answers[i].logits, golden(name)[f"{p}.gen.logits"])


@pytest.mark.slow
@pytest.mark.parametrize("name", OUROS)
def test_golden_generation_with_exits_in_mode_full(name: str) -> None:
    """Tokens and exit depths of the authors' own early exit, all thresholds in one engine."""
    setup, wanted = Setup(model=name, mode="full", num_slots=5), golden(name)
    cases = [(p, t) for p in PROMPTS for t in THRESHOLDS]
    requests = [
        greedy(
            i,
            wanted[f"{p}.ids"].tolist(),
            NUM_OUTPUTS,
            setup,
            exit_params={"exit_threshold": THRESHOLDS[t]},
        )
        for i, (p, t) in enumerate(cases)
    ]
    answers = run_together(build(setup), requests)
    for i, (p, t) in enumerate(cases):
        assert answers[i].tokens == wanted[f"{p}.gen_{t}.ids"].tolist(), (p, t)
        depths = [depth - 1 for depth in answers[i].depths]
        assert depths == wanted[f"{p}.gen_{t}.steps"].tolist(), (p, t)


@pytest.mark.slow
@pytest.mark.parametrize("name", OUROS)
def test_golden_generation_while_deeper_loops_go_on(name: str) -> None:
    """Mode full under `pipeline` without guesses: the authors' tokens and depths at the latency of
    early exit, because a row that was read goes on beside its successors."""
    setup, wanted = Setup(model=name, mode="full", num_slots=1), golden(name)
    built = build(replace(setup, strategy="pipeline", draft_depth=0))
    for p, t in ((p, t) for p in PROMPTS for t in THRESHOLDS):
        params = {"exit_threshold": THRESHOLDS[t]}
        prompt = wanted[f"{p}.ids"].tolist()
        built.engine.add(greedy(0, prompt, NUM_OUTPUTS, setup, exit_params=params))
        answers: dict[int, Answer] = {}
        ticks = []
        while built.engine.has_work:
            events = built.engine.step()
            ticks += [events.tick] * len(events.request_id)
            collect(answers, events)
        assert answers[0].tokens == wanted[f"{p}.gen_{t}.ids"].tolist(), (p, t)
        steps = wanted[f"{p}.gen_{t}.steps"].tolist()
        assert [depth - 1 for depth in answers[0].depths] == steps, (p, t)
        assert ticks[-1] - ticks[0] == sum(step + 1 for step in steps[1:]), (p, t)


@pytest.mark.parametrize("name", OUROS)
def test_golden_exits_and_logits_at_every_position(name: str) -> None:
    """`score` in mode full reads every position at the depth the authors' code exits at."""
    setup, wanted = Setup(model=name, mode="full", chunk_size=16), golden(name)
    cases = [(p, t) for p in PROMPTS for t in THRESHOLDS]
    requests = [
        EngineRequest(
            request_id=i,
            prompt=wanted[f"{p}.ids"].numpy(),
            kind="score",
            loops=4,
            max_loops=4,
            exit_params={"exit_threshold": THRESHOLDS[t]},
        )
        for i, (p, t) in enumerate(cases)
    ]
    answers = run_together(build(setup), requests)
    for i, (p, t) in enumerate(cases):
        scored = [answers[i].scored[j] for j in range(len(requests[i].prompt) - 1)]
        depths = [depth - 1 for depth, _, _ in scored]
        assert depths == wanted[f"{p}.exit_{t}.steps"][:-1].tolist(), (p, t)
        close([logits for _, _, logits in scored], wanted[f"{p}.exit_{t}.logits"][:-1])


def _prompt(model: str, length: int, seed: int) -> list[int]:
    vocab = load_model(model)[0].vocab_size
    prompt: list[int] = np.random.default_rng(seed).integers(0, vocab, length).tolist()
    return prompt


Reference = Callable[[WeightedModel], Generated]


def compare(model: str, found: Answer, reference: Reference) -> Generated:
    """Tokens and depths are equal, logits within 1e-4 of the reference in float64.

    Where rounding alone moves float32 further than that (a random model under `shared` is
    ill-conditioned now and then), within four times the float32 reference's own distance.
    """
    wanted = reference(wide_model(model))
    assert found.tokens == wanted.tokens
    assert found.depths == wanted.depths
    logits = torch.stack(wanted.logits)
    error = (torch.as_tensor(np.stack(found.logits)) - logits).abs().max()
    if error > TOLERANCE:
        narrow = torch.stack(reference(load_model(model)[1]).logits)
        assert error < 4 * (narrow - logits).abs().max() < 4e-3
    return wanted


# Prompt lengths across a page border, thresholds with exits at every depth, other loop counts.
_CASES: list[dict[str, float]] = [
    {"length": 5, "outputs": 6, "threshold": 0.5},
    {"length": 9, "outputs": 4, "threshold": 0.3, "min_loops": 2},
    {"length": 4, "outputs": 4, "threshold": 0.75, "fewer": 1},
]


@pytest.mark.parametrize("model", mostly_slow((*MODELS, "tiny_c"), "tiny_b"))
@pytest.mark.parametrize(("layout", "mode"), mostly_slow(COMBINATIONS, ("last_exited", "skip")))
def test_gate_against_the_reference(model: str, layout: str, mode: ExitMode, seed: int) -> None:
    """Which plane a deeper reader sees after an exit, per layout and mode (A15, A5, A6).

    All cases run together, with chunks and pages that cut their prompts.
    """
    setup = Setup(model=model, layout=layout, mode=mode, chunk_size=3, page_size=4)
    requests: list[EngineRequest] = []
    references: list[Reference] = []
    for i, case in enumerate(_CASES):
        prompt, outputs = _prompt(model, int(case["length"]), seed + i), int(case["outputs"])
        exits = Exit(
            policy="gate",
            threshold=case["threshold"],
            loops=load_model(model)[0].loops - int(case.get("fewer", 0)),
            min_loops=int(case.get("min_loops", 1)),
        )
        requests.append(
            greedy(
                i,
                prompt,
                outputs,
                setup,
                loops=exits.loops,
                min_loops=exits.min_loops,
                exit_params={"exit_threshold": exits.threshold},
                state_seed=i,
            )
        )
        references.append(_reference(setup, prompt, outputs, exits, Options(state_seed=i)))
    answers = run_together(build(setup), requests)
    texts = [compare(model, answers[i], reference) for i, reference in enumerate(references)]
    assert len({depth for text in texts for depth in text.depths}) > 1, "no exits drawn"


@pytest.mark.parametrize(
    "model", mostly_slow(["tiny_a", "ouro_b", "nanbeige_b", "nanbeige_c"], "ouro_b")
)
@pytest.mark.parametrize(("layout", "mode"), mostly_slow(COMBINATIONS, ("last_step", "skip")))
def test_scripted_depths_against_the_reference(
    model: str, layout: str, mode: ExitMode, seed: int
) -> None:
    """Policies trace and fixed with a largest depth: the depths that were asked for (A14)."""
    loops, prompt = load_model(model)[0].loops, _prompt(model, 6, seed)
    script = [loops, 1, 3, 2, loops, 1]
    for policy, largest in (("trace", loops), ("fixed", 2)):
        setup = Setup(model=model, layout=layout, mode=mode, policy=policy, page_size=4)
        trace = np.array(script, np.int32) if policy == "trace" else None
        request = greedy(0, prompt, len(script), setup, max_loops=largest, trace=trace)
        exits = Exit(policy=policy, trace=script, loops=loops, max_loops=largest)
        found = run_together(build(setup), [request])[0]
        compare(model, found, _reference(setup, prompt, len(script), exits))
        if policy == "trace":
            assert found.depths == script


def _reference(
    setup: Setup,
    prompt: list[int],
    outputs: int,
    exits: Exit,
    options: Options = NO_OPTIONS,
) -> Reference:
    def reference(model: WeightedModel) -> Generated:
        full = setup.mode == "full"
        return generate(
            model, prompt, outputs, exits, layout=setup.layout, full=full, options=options
        )

    return reference


@pytest.mark.parametrize(
    "layout", mostly_slow(["last_exited", "shared", "last_step"], "last_exited")
)
def test_score_in_mode_skip_against_the_reference(layout: str, seed: int) -> None:
    """Positions after the prompt of a scored text leave by the policy and are filled (A15)."""
    model, border, params = "tiny_b", 4, {"exit_threshold": 0.5}
    text = _prompt(model, 11, seed)
    loops = load_model(model)[0].loops
    setup = Setup(model=model, layout=layout, chunk_size=3, page_size=4)
    request = EngineRequest(
        request_id=0,
        prompt=np.array(text, np.int64),
        kind="score",
        prompt_len=border,
        loops=loops,
        max_loops=loops,
        exit_params=params,
    )
    scored = run_together(build(setup), [request])[0].scored
    exits = Exit(policy="gate", threshold=0.5, loops=loops)
    wanted = generate(
        wide_model(model),
        text[:border],
        len(text) - border,
        exits,
        layout=layout,
        known=text[border:],
    )
    found = [scored[position] for position in range(border - 1, len(text) - 1)]
    assert [depth for depth, _, _ in found] == wanted.depths
    close([logits for _, _, logits in found], torch.stack(wanted.logits))


@pytest.mark.parametrize(
    "model", mostly_slow(["tiny_a", "tiny_b", "ouro_a", "nanbeige_a"], "tiny_b")
)
def test_skip_differs_from_full(model: str, seed: int) -> None:
    """If both modes gave the same, the tests of skip would not see what an exit fills in."""
    texts = {}
    loops = load_model(model)[0].loops
    for mode in ("skip", "full"):
        setup = Setup(model=model, mode=mode, policy="trace")
        trace = np.array([loops, 1, 2, 1, loops, loops], np.int32)
        request = greedy(0, _prompt(model, 5, seed), 6, setup, trace=trace)
        texts[mode] = run_together(build(setup), [request])[0]
    assert texts["skip"].depths == texts["full"].depths
    assert not np.allclose(texts["skip"].logits[-1], texts["full"].logits[-1], atol=1e-2)


@pytest.mark.slow
def test_a_depth_beyond_the_trained_one(seed: int) -> None:
    """A model with loops_override runs up to the engine's largest depth, and fewer (A6)."""
    setup = Setup(model="tiny_a", policy="fixed", page_size=4)
    built, prompt = build(setup), _prompt("tiny_a", 5, seed)
    for loops in (2, 7):
        found = run_together(built, [greedy(loops, prompt, 4, setup, loops=loops)])[loops]
        compare("tiny_a", found, _reference(setup, prompt, 4, Exit(loops=loops)))


def test_planes_hold_different_keys(seed: int) -> None:
    """Every depth of every layer keeps keys of its own; boundary tracks have one plane (A1)."""
    model = load_model("tiny_a")[1]
    assert isinstance(model, TinyModel)
    tokens = torch.tensor(_prompt("tiny_a", 6, seed))
    depths = torch.full_like(tokens, 5)
    run = run_pass(model, Text(tokens, 6, depths, depths, 5), "last_exited")
    states = run.states[1:].flatten(1)
    assert len(torch.unique(states, dim=0)) == 5
    assert set(RULES) == {"last_exited", "shared", "last_step", "no_fill"}


@pytest.mark.parametrize("model", mostly_slow(["tiny_a", "tiny_b"], "tiny_b"))
def test_the_start_state_is_keyed_by_seed_and_position(model: str, seed: int) -> None:
    """The same state seed gives the same tokens alone and in company; another one gives others
    where the model draws its start state (A47)."""
    setup = Setup(model=model, policy="fixed")
    prompt = _prompt(model, 5, seed)
    requests = [greedy(i, prompt, 5, setup, state_seed=s) for i, s in enumerate((3, 3, 4, -9))]
    together = run_together(build(setup), requests)
    torch.manual_seed(seed)
    alone = run_together(build(setup), [requests[0]])[0]
    same = [np.array_equal(together[i].logits, alone.logits) for i in range(4)]
    draws = load_model(model)[0].config.keyed_state  # type: ignore[attr-defined]
    assert same == [True, True, not draws, not draws]
