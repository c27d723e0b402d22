"""The demo's trainer and the engine compute the same mathematics."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from training.evaluate_plain import read_heldout
from training.generate import Rule, exit_depths
from training.model import Readout, load_model
from training.tokenizer import EOS_ID, encode

from rlt_core.schedule.engine import Engine
from rlt_core.schedule.request import EngineRequest, TickCounts
from rlt_core.stage.build import build_engine
from rlt_core.stage.config import StageConfig
from tests.engines import Answer, collect

DEMO = Path(__file__).parents[1] / "plugins" / "rlt_ouro" / "rlt_ouro" / "demo"
LOOPS, TOLERANCE = 4, 1e-4
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


@lru_cache(maxsize=1)
def _texts(seed: int, count: int = 2) -> list[list[int]]:
    """Token ids of whole problems with their answers, one of them without additions."""
    problems = read_heldout(DEMO / "heldout.jsonl")
    drawn = random.Random(seed).sample(problems, count - 1)
    easy = next(problem for problem in problems if problem.grade == 0)
    return [[*encode(p.prompt + p.answer), EOS_ID] for p in [easy, *drawn]]


@lru_cache(maxsize=8)
@torch.no_grad()
def _trained(tokens: tuple[int, ...]) -> Readout:
    """What the trainer's own forward pass reads, logits [loops, 1, tokens, vocabulary]."""
    readout = load_model(DEMO)(torch.tensor([tokens]))
    assert isinstance(readout, Readout)
    return readout


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fixed", "gate"])
def test_ticks_of_a_token_follow_the_acceptance(policy: str) -> None:
    """Guards what strategy `pipeline` is for, on real guesses: from the first to the last of 256
    tokens at most 1 + 3 (1 - acceptance) + 0.05 ticks each, and the tokens of plain refill."""
    prompt = encode("12+34+5+6=")
    counted: dict[str, tuple[int, Answer, TickCounts]] = {}
    for strategy in ("refill", "pipeline"):
        config = StageConfig(
            model_path=str(DEMO),
            exit_policy=policy,
            strategy=strategy,
            num_slots=1,
            max_len=320,
            keep_logits=True,
        )
        engine = cast(Engine, build_engine(config).engine)
        request = EngineRequest(
            request_id=0,
            prompt=np.array(prompt),
            max_tokens=257,
            loops=LOOPS,
            max_loops=LOOPS,
            exit_params={"exit_threshold": 0.3} if policy == "gate" else {},
        )
        engine.add(request)
        answers: dict[int, Answer] = {}
        ticks: list[int] = []
        while engine.has_work:
            events = engine.step()
            ticks += [events.tick] * len(events.request_id)
            collect(answers, events)
        counted[strategy] = ticks[-1] - ticks[0], answers[0], engine.counts
    plain, guessing = counted["refill"], counted["pipeline"]
    assert guessing[1].tokens == plain[1].tokens
    assert guessing[1].depths == plain[1].depths
    counts = guessing[2]
    acceptance = counts.guesses_held / counts.guesses_checked
    each = guessing[0] / 256
    print(f"{policy}: acceptance {acceptance:.3f}, {each:.3f} ticks a token, {plain[0] / 256:.3f}")
    assert each <= 1 + 3 * (1 - acceptance) + 0.05


def _scored(policy: str, requests: list[EngineRequest]) -> dict[int, Answer]:
    """The engine's reading of every position, on the shipped folder, in exit mode full."""
    config = StageConfig(
        model_path=str(DEMO),
        exit_policy=policy,
        exit_mode="full",
        dtype="float32",
        chunk_size=16,
        num_slots=4,
        max_len=96,
        debug=True,
        keep_logits=True,
    )
    engine = build_engine(config).engine
    answers: dict[int, Answer] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        collect(answers, engine.step())
    return answers


def _score(
    request_id: int,
    tokens: list[int],
    max_loops: int = LOOPS,
    exit_params: dict[str, float] | None = None,
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt=np.array(tokens, np.int64),
        kind="score",
        loops=LOOPS,
        max_loops=max_loops,
        exit_params=exit_params or {},
    )


def _rows(answer: Answer, tokens: list[int]) -> tuple[list[int], Tensor]:
    """Depths and logits of every position that has a successor."""
    scored = [answer.scored[position] for position in range(len(tokens) - 1)]
    logits = torch.from_numpy(np.stack([row for _, _, row in scored]))
    return [depth for depth, _, _ in scored], logits


@pytest.mark.slow
def test_the_trainer_and_the_engine_give_the_same_logits(seed: int) -> None:
    """Guards the shipped weights' meaning: a norm, rotation or head that the trainer computes
    otherwise than the engine would make a demo that was never trained (issue 2, point 10)."""
    texts = _texts(seed)
    cases = [(text, loops) for text in texts for loops in range(1, LOOPS + 1)]
    requests = [_score(i, text, max_loops=loops) for i, (text, loops) in enumerate(cases)]
    answers = _scored("fixed", requests)
    for i, (text, loops) in enumerate(cases):
        depths, logits = _rows(answers[i], text)
        wanted = _trained(tuple(text)).logits[loops - 1, 0, :-1]
        assert set(depths) == {loops}
        torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)


def test_the_trainer_and_the_engine_leave_at_the_same_loops(seed: int) -> None:
    """Guards the gate: a head read from another state, or another rule of leaving, exits at other
    depths than those the checkpoint was judged by."""
    cases = [(text, threshold) for text in _texts(seed) for threshold in THRESHOLDS]
    requests = [
        _score(i, text, exit_params={"exit_threshold": threshold})
        for i, (text, threshold) in enumerate(cases)
    ]
    answers, seen = _scored("gate", requests), set()
    for i, (text, threshold) in enumerate(cases):
        readout = _trained(tuple(text))
        wanted = exit_depths(readout.gate_logits[:, 0, :-1], Rule(threshold=threshold))
        depths, logits = _rows(answers[i], text)
        assert depths == wanted.tolist()
        rows = torch.arange(len(text) - 1)
        chosen = readout.logits[wanted - 1, 0, rows]
        torch.testing.assert_close(logits, chosen, atol=TOLERANCE, rtol=0)
        seen |= set(depths)
    assert seen == set(range(1, LOOPS + 1)), "some loop is never left at"
