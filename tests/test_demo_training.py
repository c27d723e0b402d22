"""The demo model's training package and the checkpoint that it made."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from training import tokenizer
from training.data import (
    FACTS,
    GRADES,
    NO_TARGET,
    draw_problem,
    facts_hash,
    heldout_problems,
    pack,
    training_problem,
)
from training.evaluate_plain import HeldOut, evaluate, read_heldout
from training.generate import Rule
from training.lessons import Lessons
from training.model import build_model, demo_config, load_model
from training.optim import orthogonal
from training.train import Options, train_gate, train_loops

DEMO = Path(__file__).parents[1] / "plugins" / "rlt_ouro" / "rlt_ouro" / "demo"


def _facts(prompt: str) -> str:
    return prompt[: prompt.rindex(". ") + 2]


def _solve(prompt: str) -> tuple[str, int]:
    """Asked name's answer and grade, from the text alone."""
    values: dict[str, int] = {}
    grades: dict[str, int] = {}
    for name, base, amount in re.findall(r"(\w+) has (?:([A-Z]\w*) \+ )?(\d)\.", prompt):
        values[name] = (values.get(base, 0) + int(amount)) % 10
        grades[name] = grades[base] + 1 if base else 0
    asked = prompt.rsplit(" ", 1)[1].rstrip("?")
    return f" {asked} has {values[asked]}.", grades[asked]


@pytest.mark.slow
def test_twenty_steps_lower_the_loss(tmp_path: Path) -> None:
    """Guards the trainer: a wrong target, mask or optimizer leaves the loss where it was."""
    torch.manual_seed(0)
    options = Options(out=tmp_path, steps=20, gate_steps=3, batch=4)
    model, lessons = build_model(demo_config()), Lessons(0, options.batch, frozenset())
    losses = train_loops(model, lessons, options)
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_gate(model, lessons, options)
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}


def test_held_out_file_is_right_and_of_its_own_seed() -> None:
    """Guards against wrong answers, unbalanced grades, repeated or stale held-out problems."""
    problems = read_heldout(DEMO / "heldout.jsonl")
    generated = [(p.prompt, p.answer, p.grade) for p in heldout_problems()]
    assert [(p.prompt, p.answer, p.grade) for p in problems] == generated
    assert len({facts_hash(_facts(p.prompt)) for p in problems}) == len(problems) == 2400
    assert all(_solve(p.prompt) == (p.answer, p.grade) for p in problems)
    assert all(p.answer.endswith(f" has {p.value}.") for p in problems)
    assert all(sum(p.grade == grade for p in problems) == 600 for grade in GRADES)


def test_training_never_meets_a_held_out_problem() -> None:
    """Guards the hash check: the same draws are made, the held-out one is thrown away."""
    heldout = {facts_hash(p.facts) for p in heldout_problems()}
    rng = random.Random(1)
    drawn = [training_problem(rng, GRADES[-1], heldout) for _ in range(500)]
    assert heldout.isdisjoint(facts_hash(p.facts) for p in drawn)
    rejected = {facts_hash(drawn[0].facts)}
    again = training_problem(random.Random(1), GRADES[-1], rejected)
    assert again.facts == drawn[1].facts


def test_each_question_is_computed_as_if_alone(seed: int) -> None:
    """Guards the packed mask and positions: a question that sees another learns a short cut."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = build_model(demo_config())
    problems = [draw_problem(rng, grade) for grade in (0, GRADES[-1])]
    batch = pack(rng, problems)
    packed = torch.stack(model.states(batch.tokens, batch.positions, batch.mask()))
    for row in range(len(problems)):
        segments = batch.segments[row]
        for segment in range(1, 9):
            chosen = (segments == FACTS) | (segments == segment)
            alone = torch.stack(model.states(batch.tokens[row, chosen][None]))
            torch.testing.assert_close(alone[:, 0], packed[:, row, chosen], atol=1e-4, rtol=0)
            text = tokenizer.decode(batch.tokens[row, chosen].tolist())
            answer, _grade = _solve(text[: text.index("?") + 1])
            wanted = [*tokenizer.encode(answer), tokenizer.EOS_ID]
            targets = batch.targets[row, chosen]
            assert targets[targets != NO_TARGET].tolist() == wanted


def test_tokenizer_file_agrees_with_the_trainer() -> None:
    """Guards the shipped tokenizer: other ids than in training, or a lost or added space."""
    shipped = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    texts = ["Zed has 12.\n Ann  +", "Ann? ", ""]
    for problem in read_heldout(DEMO / "heldout.jsonl")[:300]:
        whole = problem.prompt + problem.answer
        assert shipped.decode(shipped.encode(whole).ids) == whole
        assert shipped.encode(whole).ids == [
            token for text in (problem.prompt, problem.answer) for token in shipped.encode(text).ids
        ]
        texts += [problem.prompt, problem.answer]
    assert all(shipped.encode(text).ids == tokenizer.encode(text) for text in texts)
    assert tokenizer.IDS[tokenizer.UNK] in shipped.encode("Zed has 1.").ids


@pytest.mark.slow
def test_shipped_checkpoint_answers(seed: int) -> None:
    """Guards the shipped weights, threshold and config: depth must matter and the gate know it."""
    torch.manual_seed(seed)
    config = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    assert config == demo_config()
    model = load_model(DEMO)
    problems: list[HeldOut] = random.Random(seed).sample(read_heldout(DEMO / "heldout.jsonl"), 140)
    full = evaluate(model, problems, Rule(fixed=4))
    shallow = evaluate(model, problems, Rule(fixed=1))
    gated = evaluate(model, problems, Rule(threshold=config["early_exit_threshold"]))
    assert full.accuracy >= 0.95
    assert shallow.of_grade(0).accuracy >= 0.95
    assert shallow.accuracy <= 0.5
    assert gated.accuracy >= full.accuracy - 0.01
    assert gated.mean_depth <= 3.0
    assert gated.value_depth <= 3.3
    assert gated.of_grade(0).value_depth < gated.of_grade(3).value_depth


def test_muon_makes_the_update_orthogonal(seed: int) -> None:
    """Guards the Newton-Schulz iteration: singular values near 1 whatever the shape."""
    torch.manual_seed(seed)
    for shape in ((128, 128), (384, 128), (128, 384)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.quantile(0.05) > 0.6
        assert values.max() < 1.3
