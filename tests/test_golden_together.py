"""All golden prompts of a checkpoint through one engine, in the smallest pool that holds one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from safetensors.numpy import load_file

from rlt_core.kv.accounting import request_pages
from tests.engines import (
    GOLDEN,
    Answer,
    Setup,
    build,
    greedy,
    load_model,
    run_alone,
    run_together,
)
from tests.selection import mostly_slow

MODELS = ("ouro_a", "ouro_b", "nanbeige_a", "nanbeige_b", "nanbeige_c")
PROMPTS = ("p0", "p1", "p2")
OUTPUTS = 24
CHUNKS, PAGES = (1, 7, 64), (4, 16)
# Every pair of a model, a chunk size and a page size.
CASES = [
    (model, chunk, PAGES[(i + j) % 2])
    for i, model in enumerate(MODELS)
    for j, chunk in enumerate(CHUNKS)
]


@pytest.mark.parametrize(
    ("model", "chunk_size", "page_size"), mostly_slow(CASES, ("ouro_b", 64, 16))
)
def test_prompts_together_in_the_smallest_pool(model: str, chunk_size: int, page_size: int) -> None:
    """Chunks, pages, parking and preemption must not change a token of the authors' own code, nor
    a bit of what a request gets alone (A2, A4, A14, A48)."""
    expected = load_file(GOLDEN / model / "expected.safetensors")
    prompts = {name: expected[f"{name}.ids"].tolist() for name in PROMPTS}
    setup = Setup(model=model, policy="fixed", chunk_size=chunk_size, page_size=page_size)
    requests = [greedy(i, prompts[name], OUTPUTS, setup) for i, name in enumerate(PROMPTS)]
    longest = max(len(prompt) for prompt in prompts.values())
    loops = load_model(model)[0].loops
    pages = request_pages(build(setup).kv, loops, longest, longest + OUTPUTS - 1) + 1
    small = build(
        Setup(
            model=model, policy="fixed", chunk_size=chunk_size, page_size=page_size, num_pages=pages
        )
    )
    together = run_together(small, requests)
    for i, name in enumerate(PROMPTS):
        assert together[i].tokens == expected[f"{name}.gen.ids"].tolist(), name
        _same_bits(together[i], alone(model, name))
    assert small.scheduler.pages.num_free == small.scheduler.pages.num_usable


@lru_cache(maxsize=len(MODELS) * len(PROMPTS))
def alone(model: str, name: str) -> Answer:
    """What one golden prompt gets with nothing else in the engine; no test changes it."""
    setup = Setup(model=model, policy="fixed")
    prompt = load_file(GOLDEN / model / "expected.safetensors")[f"{name}.ids"].tolist()
    return run_alone(build(setup), greedy(0, prompt, OUTPUTS, setup))


def _same_bits(found: Answer, alone: Answer) -> None:
    assert found.tokens == alone.tokens
    assert found.depths == alone.depths
    assert np.array_equal(np.stack(found.logits), np.stack(alone.logits))
