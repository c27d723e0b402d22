"""The comparing policies, and a layout that hides missing keys, against brute-force references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlt_core.plugins.plan import ExitMode
from rlt_core.schedule.request import EngineRequest
from tests.criteria import CRITERIA
from tests.engines import Answer, Setup, build, greedy, load_model, run_together
from tests.reference import Exit, Generated, generate
from tests.selection import mostly_slow
from tests.test_reference import TOLERANCE, wide_model

# Thresholds at which random models leave at every depth.
THRESHOLDS: dict[str, tuple[float, float]] = {
    "latent": (0.9, 0.6),
    "cosine": (0.6, 0.3),
    "entropy": (0.8, 0.4),
    "kl": (2.0, 1.0),
    "minp_kl": (0.8, 0.5),
    "argmax": (1, 1),
}
COMBINATIONS: list[tuple[str, ExitMode]] = [
    ("last_exited", "skip"),
    ("last_exited", "full"),
    ("no_fill", "skip"),
    ("last_step", "skip"),
]
LENGTHS = (5, 9)
NUM_OUTPUTS = 5


def same(found: Answer, wanted: Generated) -> None:
    """Tokens and depths equal, logits within 1e-4 of float64."""
    assert found.depths == wanted.depths
    assert found.tokens == wanted.tokens
    close(found.logits, wanted.logits)


def close(found: list[np.ndarray], wanted: list[Tensor]) -> None:
    error = (torch.as_tensor(np.stack(found)) - torch.stack(wanted)).abs().max()
    assert error < TOLERANCE


def prompts(model: str, seed: int) -> list[list[int]]:
    """Two prompts that chunks and pages cut."""
    vocab, draw = load_model(model)[0].vocab_size, np.random.default_rng(seed)
    return [draw.integers(0, vocab, length).tolist() for length in LENGTHS]


@pytest.mark.parametrize("policy", mostly_slow(CRITERIA, "kl"))
@pytest.mark.parametrize(("layout", "mode"), mostly_slow(COMBINATIONS, ("last_exited", "full")))
def test_policies_against_the_reference(
    policy: str, layout: str, mode: ExitMode, seed: int
) -> None:
    """What a row shows is compared with its own loop before, from the right start, with coda KV of
    the right depth; in mode full the last position of a prompt decides too. Models take turns."""
    depths = set()
    for model in ("tiny_a", "ouro_b") if policy in ("latent", "kl") else ("tiny_a",):
        setup = Setup(
            model=model, layout=layout, mode=mode, policy=policy, chunk_size=3, page_size=4
        )
        built, loops = build(setup), load_model(model)[0].loops
        cases = list(zip(prompts(model, seed), THRESHOLDS[policy], (1, 2), strict=True))
        requests = [
            greedy(
                i,
                prompt,
                NUM_OUTPUTS,
                setup,
                min_loops=least,
                exit_params={"exit_threshold": threshold},
            )
            for i, (prompt, threshold, least) in enumerate(cases)
        ]
        answers = run_together(built, requests)
        for i, (prompt, threshold, least) in enumerate(cases):
            exits = Exit(policy=policy, threshold=threshold, loops=loops, min_loops=least)
            wanted = generate(
                wide_model(model), prompt, NUM_OUTPUTS, exits, layout=layout, full=mode == "full"
            )
            same(answers[i], wanted)
            depths |= set(wanted.depths)
    assert len(depths) > 1, "no exits drawn"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["last_exited", "no_fill"])
@pytest.mark.parametrize("policy", ["latent", "kl", "argmax"])
def test_scored_texts_against_the_reference(policy: str, layout: str, seed: int) -> None:
    """Known tokens leave by the policy as generated ones would. A policy that reads logits must
    not see coda KV that no earlier position of its cell has written yet."""
    model = "tiny_b"
    loops, text = load_model(model)[0].loops, prompts(model, seed)[1]
    setup = Setup(model=model, layout=layout, policy=policy, chunk_size=4, page_size=4)
    threshold = THRESHOLDS[policy][0]
    for border in (1, 3):
        request = EngineRequest(
            request_id=border,
            prompt=np.array(text, np.int64),
            kind="score",
            prompt_len=border,
            loops=loops,
            max_loops=loops,
            exit_params={"exit_threshold": threshold},
        )
        scored = run_together(build(setup), [request])[border].scored
        exits = Exit(policy=policy, threshold=threshold, loops=loops)
        num_outputs, known = len(text) - border, text[border:]
        wanted = generate(
            wide_model(model), text[:border], num_outputs, exits, layout=layout, known=known
        )
        found = [scored[position] for position in range(border - 1, len(text) - 1)]
        assert [depth for depth, _, _ in found] == wanted.depths
        assert len(set(wanted.depths)) > 1, "no exits drawn"
        close([logits for _, _, logits in found], wanted.logits)
