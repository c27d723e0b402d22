"""All golden prompts of a checkpoint through one engine, in the smallest pool that holds one."""

from __future__ import annotations

from dataclasses import replace
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

MODELS = ("ouro_a", "ouro_b", "nanbeige_a", "nanbeige_b", "nanbeige_c")
PROMPTS = ("p0", "p1", "p2")
CHUNKS, PAGES = (1, 7, 64), (4, 16)
# All tokens that are recorded for one chunk size, fewer for the others where the model is not the
# one that this is promised for.
SOME, ALL = {1: 10, 7: 24, 64: 10}, {1: 24, 7: 24, 64: 24}
# Every chunk size with every page size for Ouro; every pair of the two with the other models.
CASES = [
    (model, chunk, page)
    for i, model in enumerate(MODELS)
    for j, chunk in enumerate(CHUNKS)
    for k, page in enumerate(PAGES)
    if model.startswith("ouro") or k == (i + j) % 2
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "chunk_size", "page_size"), CASES)
def test_prompts_together_in_the_smallest_pool(model: str, chunk_size: int, page_size: int) -> None:
    """Chunks, pages, parking and preemption must not change a token of the authors' own code, nor
    a bit of what a request gets alone (A2, A4, A14, A48)."""
    expected = load_file(GOLDEN / model / "expected.safetensors")
    prompts = {name: expected[f"{name}.ids"].tolist() for name in PROMPTS}
    setup = Setup(model=model, policy="fixed", chunk_size=chunk_size, page_size=page_size)
    outputs = (ALL if model.startswith("ouro") else SOME)[chunk_size]
    requests = [greedy(i, prompts[name], outputs, setup) for i, name in enumerate(PROMPTS)]
    longest = max(len(prompt) for prompt in prompts.values())
    loops = load_model(model)[0].loops
    pages = request_pages(build(setup).kv, loops, longest, longest + outputs - 1) + 1
    small = build(replace(setup, num_pages=pages))
    together = run_together(small, requests)
    for i, name in enumerate(PROMPTS):
        assert together[i].tokens == expected[f"{name}.gen.ids"].tolist()[:outputs], name
        _same_bits(together[i], alone(model, name), outputs)
    assert small.scheduler.pages.num_free == small.scheduler.pages.num_usable


@lru_cache(maxsize=len(MODELS) * len(PROMPTS))
def alone(model: str, name: str) -> Answer:
    """What one golden prompt gets with nothing else in the engine; no test changes it."""
    setup = Setup(model=model, policy="fixed")
    prompt = load_file(GOLDEN / model / "expected.safetensors")[f"{name}.ids"].tolist()
    return run_alone(build(setup), greedy(0, prompt, max(ALL.values()), setup))


def _same_bits(found: Answer, alone: Answer, outputs: int) -> None:
    assert found.tokens == alone.tokens[:outputs]
    assert found.depths == alone.depths[:outputs]
    assert np.array_equal(np.stack(found.logits), np.stack(alone.logits[:outputs]))
