"""rlt-huginn against the authors' own code, without the engine: prelude, latents and logits."""

from __future__ import annotations

import math

import pytest
import torch

from rlt_core.runtime.weights import random_weights
from tests.huginn import (
    GOLDEN,
    MODELS,
    PROMPTS,
    build,
    close,
    context,
    expected,
    fields,
    read,
    run_loops,
    unloaded,
)

LOOPS = 6
READ_AT = (1, 2, 4, 6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("zero", [False, True])
def test_latents_and_logits_of_every_loop(name: str, prompt: str, zero: bool) -> None:
    """From the table of start latents and from zeros: rope on pairs, bias before it, the norm on
    the sum, latent first in the adapter, ln_f before and after the coda (A51)."""
    model, wanted = build(GOLDEN / name), expected(name)
    width, part = model.config.n_embd, f"{prompt}.zero" if zero else prompt
    table = None if zero else wanted[f"{prompt}.state_table"]
    scale = 0.0 if zero else 1.0
    states, ctx = run_loops(model, wanted[f"{prompt}.ids"], LOOPS, scale=scale, table=table)
    for loop, state in enumerate(states):
        close(state[:, width:], wanted[f"{prompt}.prelude"])
        if loop:
            close(state[:, :width], wanted[f"{part}.latents"][loop - 1])
        signals = model.signals(state, states[0], ctx, frozenset({"state"}))
        assert torch.equal(signals["state"], state[:, :width])
        if loop in READ_AT:
            close(model.head(model.coda(state, ctx), ctx), wanted[f"{part}.logits_s{loop}"])
    if not zero:
        for loop in READ_AT:
            normed = ctx.ops.rms_norm(states[loop][:, :width], model.ln_f, model.config.norm_eps)
            close(normed, wanted[f"{prompt}.latent_normed_s{loop}"])
    start = torch.zeros_like(states[0][:, :width]) if table is None else table[: len(states[0])]
    assert torch.equal(states[0][:, :width], start)


def test_only_the_signals_asked_for() -> None:
    """A policy that needs no state must not pay for a copy; there is no gate."""
    model = build(GOLDEN / "huginn_b")
    states, ctx = run_loops(model, torch.tensor([3, 4]), 1)
    assert model.signals(states[1], states[0], ctx, frozenset()) == {}


def test_a_warm_row_starts_from_the_normed_latent_before_it() -> None:
    """ln_f of the predecessor's final latent, for the rows that have one; the raw latent is what
    another of the authors' entry points passes on."""
    model, wanted = build(GOLDEN / "huginn_a"), expected("huginn_a")
    tokens, width = wanted["p0.ids"], model.config.n_embd
    before = run_loops(model, tokens, 4, scale=0.0)[0][-1].roll(1, 0)
    known = torch.tensor([False, False, True, False, True])
    warm = model.prelude(tokens, context(model, 5, scale=0.0, before=before, known=known))
    normed = torch.nn.functional.rms_norm(before[:, :width], (width,), model.ln_f, 1e-6)
    close(warm[known, :width], normed[known])
    assert torch.equal(warm[~known, :width], torch.zeros(3, width))


def test_the_coda_stores_only_when_asked() -> None:
    """A policy that looks at logits runs the coda after every loop; it may leave no trace."""
    model = build(GOLDEN / "huginn_b")
    states, ctx = run_loops(model, torch.tensor([3, 4]), 1)
    for store in (True, False):
        ctx.stored.clear()
        model.coda(states[1], ctx, store=store)
        assert ctx.stored == [store] * 2


def test_the_same_forward_twice() -> None:
    """The embedding is scaled for the prelude, not in place: the head reads it as it is (A54)."""
    model, tokens = build(GOLDEN / "huginn_a"), torch.tensor([7, 7, 1])
    before = model.wte.clone()
    first, again = (run_loops(model, tokens, 2, scale=0.0)[0][-1] for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(model.wte, before)


def test_identity_blocks_have_a_closed_form() -> None:
    """Blocks that add nothing and norm with weight 1 leave adapter and ln_f alone (A51): with
    an adapter that passes the prelude output on, the logits are ln_f twice on it."""
    sizes = {"n_embd": 8, "n_heads": 2, "num_key_value_heads": 2}
    shape = read(fields("huginn_a", **sizes, init_values=...))
    model = unloaded(shape)
    random_weights(model, 0)
    for blocks in model.blocks.values():
        for block in blocks:
            block.out.zero_()
            block.proj.zero_()
            for weight in block.norms:
                weight.fill_(1.0)
    model.adapter.copy_(torch.cat((torch.zeros(8, 8), torch.eye(8)), dim=1))
    model.ln_f.copy_(torch.arange(1.0, 9.0))
    weight = model.ln_f.double()
    states, ctx = run_loops(model, torch.tensor([2]), 3)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean().sqrt()

    row = model.wte[2].double() * math.sqrt(8)
    x = norm(row)  # any number of unit norms is one
    wanted = norm(norm(norm(x) * weight)) * weight  # ln_f, the coda's unit norms, ln_f
    found = model.head(model.coda(states[-1], ctx), ctx)[0]
    torch.testing.assert_close(found, (model.wte.double() @ wanted).float())
