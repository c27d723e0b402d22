"""rlt-nanbeige against the authors' own code: states, logits of every loop, greedy tokens."""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.cli import main
from rlt_core.plugins.plan import ExitMode
from rlt_core.runtime.rope import RopeTable
from rlt_core.schedule.request import EngineRequest
from rlt_nanbeige.config import read_config
from rlt_nanbeige.model import Nanbeige
from tests.dense import DenseContext
from tests.engines import GOLDEN, Answer, Setup, build, greedy, load_model, run_alone, run_together
from tests.reference import Pass, Text, run_pass
from tests.selection import mostly_slow

MODELS = ("nanbeige_a", "nanbeige_b", "nanbeige_c")
PROMPTS = ("p0", "p1", "p2")
NUM_OUTPUTS = 24


@lru_cache(maxsize=3)
def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / name / "expected.safetensors")


def close(found: Tensor, wanted: Tensor) -> None:
    """1e-4 absolute, the data's own tolerance."""
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def full_depth(model: Nanbeige, tokens: Tensor, loops: int) -> Pass:
    """All loops of every position, without the engine."""
    depth = torch.full_like(tokens, loops)
    return run_pass(model, Text(tokens, len(tokens), depth, depth, loops), "last_exited")


def nanbeige(name: str) -> tuple[Nanbeige, int]:
    """The model of a golden folder, and its loops."""
    shape, model = load_model(name)
    assert isinstance(model, Nanbeige)
    return model, shape.loops


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_states_and_logits_of_every_loop(name: str, prompt: str) -> None:
    """Where the norm acts: after every loop, or once where the state is read, at any depth."""
    (model, loops), wanted = nanbeige(name), golden(name)
    tokens = wanted[f"{prompt}.ids"]
    run = full_depth(model, tokens, loops)
    before_norm = model.config.skip_loop_final_norm
    for depth in range(1, loops + 1):
        state, key = run.states[depth], f"{prompt}.loop_hidden"
        close(state, wanted[f"{key}_prenorm" if before_norm else key][depth - 1])
        close(
            run.logits(torch.full_like(tokens, depth)), wanted[f"{prompt}.loop_logits"][depth - 1]
        )
    close(run.logits(torch.full_like(tokens, loops)), wanted[f"{prompt}.logits"])


@pytest.mark.parametrize("name", MODELS)
def test_the_state_signal_is_what_the_head_reads(name: str) -> None:
    """Normed once at every depth; nothing that a policy does not ask for is computed."""
    (model, loops), wanted = nanbeige(name), golden(name)
    tokens = wanted["p1.ids"]
    run = full_depth(model, tokens, loops)
    here = torch.arange(len(tokens))
    context = DenseContext({}, here, loops, here.expand(len(tokens), -1), loops + 1)
    for depth in range(1, loops + 1):
        states = run.states[depth], run.states[depth - 1]
        state = model.signals(*states, context, frozenset({"state"}))["state"]
        close(state @ model.lm_head.T, wanted["p1.loop_logits"][depth - 1])
        assert model.signals(*states, context, frozenset()) == {}
        if depth == loops:
            close(state, wanted["p1.loop_hidden"][-1])
        assert model.coda(states[0], context) is states[0]


@pytest.mark.parametrize("name", mostly_slow(MODELS, "nanbeige_b"))
@pytest.mark.parametrize("mode", ["skip", "full"])
def test_the_engine_s_logits_at_every_position_and_loop(name: str, mode: ExitMode) -> None:
    """Fewer loops (`skip`), and a read-out above the last loop while the row goes on (`full`):
    both are the authors' code with that num_loops. All prompts and depths run together."""
    loops, wanted = load_model(name)[0].loops, golden(name)
    setup = Setup(model=name, policy="fixed", mode=mode, chunk_size=7, page_size=4)
    cases = [(p, depth) for p in PROMPTS for depth in range(1, loops + 1)]
    requests: list[EngineRequest] = []
    for i, (p, depth) in enumerate(cases):
        used = depth if mode == "skip" else loops
        for kind, max_tokens in (("score", 0), ("generate", 1)):
            requests.append(
                EngineRequest(
                    request_id=2 * i + (kind == "generate"),
                    prompt=wanted[f"{p}.ids"].numpy(),
                    kind=kind,
                    max_tokens=max_tokens,
                    loops=used,
                    max_loops=depth,
                )
            )
    answers = run_together(build(setup), requests)
    for i, (p, depth) in enumerate(cases):
        scored, last = answers[2 * i].scored, answers[2 * i + 1]
        rows = [scored[j][2] for j in range(len(requests[2 * i].prompt) - 1)]
        found = torch.from_numpy(np.stack([*rows, *last.logits]))
        close(found, wanted[f"{p}.loop_logits"][depth - 1])
        assert {*(scored[j][0] for j in scored), *last.depths} == {depth}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_through_llm(name: str) -> None:
    """What a user gets from LLM, together and alone: the authors' tokens at full depth."""
    wanted, loops = golden(name), load_model(name)[0].loops
    prompts: list[Any] = [{"prompt_token_ids": wanted[f"{p}.ids"].tolist()} for p in PROMPTS]
    params = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0, ignore_eos=True)
    with LLM(GOLDEN / name, in_process=True, debug=True, kv_pages=100, max_model_len=96) as llm:
        outputs = [*llm.generate(prompts, params), *llm.generate(prompts[:1], params)]
    for p, output in zip((*PROMPTS, "p0"), outputs, strict=True):
        assert output.outputs[0].token_ids == wanted[f"{p}.gen.ids"].tolist(), p
        assert output.outputs[0].exit_depths == [loops] * NUM_OUTPUTS


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *mostly_slow([(name, ["--in-process"]) for name in MODELS], (MODELS[1], ["--in-process"])),
        pytest.param("nanbeige_a", [], marks=pytest.mark.slow, id="nanbeige_a-stage-process"),
    ],
)
def test_greedy_tokens_through_the_command_line(
    name: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`rlt run FOLDER` with all prompts; a stage process of its own finds the plugin too."""
    wanted = golden(name)
    argv = ["run", str(GOLDEN / name), "--max-tokens", str(NUM_OUTPUTS), "--ignore-eos", "--json"]
    argv += ["--temperature", "0", "--kv-pages", "100", "--max-model-len", "96"]
    for p in PROMPTS:
        argv += ["--prompt-token-ids", ",".join(map(str, wanted[f"{p}.ids"].tolist()))]
    code = main([*argv, *how])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = [json.loads(line)["token_ids"] for line in out.splitlines()]
    assert found == [wanted[f"{p}.gen.ids"].tolist() for p in PROMPTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16(name: str) -> None:
    """In the released dtype: the bits of a request do not depend on its neighbours, chunks or
    pages, and its first logits lie near the float32 ones."""
    wanted = golden(name)
    prompts = [wanted[f"{p}.ids"].tolist() for p in PROMPTS]
    plain = Setup(model=name, policy="fixed", dtype="bfloat16")
    cut = dataclasses.replace(plain, chunk_size=7, page_size=4, num_slots=2)
    requests = [greedy(i, prompt, 8, plain) for i, prompt in enumerate(prompts)]
    together = run_together(build(cut), requests)
    for request, p in zip(requests, PROMPTS, strict=True):
        found = together[request.request_id]
        _same_bits(found, run_alone(build(plain), request))
        first, true = torch.from_numpy(found.logits[0]), wanted[f"{p}.gen.logits"][0]
        assert (first - true).abs().max() < 0.15 * true.std()
        assert not torch.equal(first, true)


def _same_bits(found: Answer, alone: Answer) -> None:
    assert (found.tokens, found.depths) == (alone.tokens, alone.depths)
    assert np.array_equal(np.stack(found.logits), np.stack(alone.logits))


def test_angles_are_float32_whatever_the_model_s_dtype() -> None:
    """Frequencies lost at load or rounded to bfloat16 give word salad and no error (CASES A33)."""
    fields = json.loads((GOLDEN / "nanbeige_a" / "config.json").read_text())
    sizes = {"hidden_size": 3072, "num_attention_heads": 48, "num_key_value_heads": 8}
    wide = {"head_dim": 128, "kv_channels": 128, "torch_dtype": "bfloat16"}
    shape = read_config(fields | sizes | wide, "here", frozenset())
    rope = shape.config.rope  # type: ignore[attr-defined]
    position = 1000
    table = RopeTable.build(rope, position, "cpu", torch.bfloat16)
    frequency = torch.tensor([1.0, 0.754, 0.5686, 0.4288]).double()
    found = torch.atan2(table.sin[1, :4].double(), table.cos[1, :4].double())
    torch.testing.assert_close(found, frequency, atol=4e-3, rtol=0)
    exact = position * 7e7 ** (-2 * torch.arange(64).double() / 128)
    # 1000 x a frequency rounded to bfloat16 would be off by up to 2 radians
    torch.testing.assert_close(table.cos[position].double(), exact.cos(), atol=5e-3, rtol=0)
