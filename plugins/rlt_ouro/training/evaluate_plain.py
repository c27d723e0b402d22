"""Accuracy and depth of a demo checkpoint on held-out problems, in plain torch.

    cd plugins/rlt_ouro
    python -m training.evaluate_plain FOLDER [--threads N]

Greedy, at 1 to 4 loops and at gate thresholds, in exit modes `skip` and `full` (generate.py), and
with the chosen threshold's depths shuffled over the problems.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from training.generate import MAX_TOKENS, Rule, generate
from training.model import Ouro, load_model
from training.tokenizer import DIGITS, EOS_ID, IDS, encode

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


class Question(Protocol):
    """A held-out problem."""

    @property
    def prompt(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def grade(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A line of heldout.jsonl."""

    prompt: str
    answer: str
    value: str
    grade: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Generated `tokens` and exit `depths`, int64 [problems, MAX_TOKENS]; past the end -1 and 0."""

    tokens: Tensor
    depths: Tensor
    right: Tensor
    grades: Tensor

    @property
    def accuracy(self) -> float:
        return self.right.double().mean().item()

    @property
    def mean_depth(self) -> float:
        return self.depths[self.depths > 0].double().mean().item()

    @property
    def value_depth(self) -> float:
        return self.depths[self._values()].double().mean().item()

    def of_grade(self, grade: int) -> Outcome:
        rows = self.grades == grade
        return Outcome(
            tokens=self.tokens[rows],
            depths=self.depths[rows],
            right=self.right[rows],
            grades=self.grades[rows],
        )

    def _values(self) -> Tensor:
        return (self.tokens >= IDS[DIGITS[0]]) & (self.tokens <= IDS[DIGITS[-1]])


def evaluate(model: Ouro, problems: Sequence[Question], rule: Rule) -> Outcome:
    """Generate every problem's answer greedily and compare it with the exact text."""
    shape = (len(problems), MAX_TOKENS)
    tokens, depths = torch.full(shape, -1), torch.zeros(shape, dtype=torch.int64)
    for rows, prompts in _equal_lengths(problems):
        recorded = None if rule.depths is None else rule.depths[rows]
        tokens[rows], depths[rows] = generate(model, prompts, rule, recorded)
    wanted = torch.full(shape, -1)
    for row, problem in enumerate(problems):
        answer = [*encode(problem.answer), EOS_ID]
        wanted[row, : len(answer)] = torch.tensor(answer)
    grades = torch.tensor([problem.grade for problem in problems])
    return Outcome(tokens=tokens, depths=depths, right=(tokens == wanted).all(1), grades=grades)


def _equal_lengths(problems: Sequence[Question]) -> list[tuple[Tensor, Tensor]]:
    """Rows and prompt token ids, grouped by prompt length so that nothing is padded."""
    groups: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for row, problem in enumerate(problems):
        token_ids = encode(problem.prompt)
        groups[len(token_ids)].append((row, token_ids))
    return [
        (torch.tensor([row for row, _ in group]), torch.tensor([ids for _, ids in group]))
        for group in groups.values()
    ]


def print_report(model: Ouro, problems: Sequence[Question], threshold: float) -> None:
    """Print accuracy per grade at each depth and threshold, and with the depths shuffled."""
    grades = sorted({problem.grade for problem in problems})
    print(f"{len(problems)} problems; accuracy %, overall and per grade {grades}")
    for loops in range(1, model.loops + 1):
        _print_line(f"{loops} loops", evaluate(model, problems, Rule(fixed=loops)), grades)
    for skip in (True, False):
        for value in THRESHOLDS:
            rule = Rule(threshold=value, skip=skip)
            name = f"{'skip' if skip else 'full'} {value}"
            _print_line(name, evaluate(model, problems, rule), grades)
    recorded = evaluate(model, problems, Rule(threshold=threshold)).depths
    order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(0))
    shuffled = evaluate(model, problems, Rule(depths=recorded[order]))
    _print_line(f"{threshold} shuffled", shuffled, grades)


def _print_line(name: str, outcome: Outcome, grades: Sequence[int]) -> None:
    parts = [outcome.of_grade(grade) for grade in grades]
    accuracies = " ".join(f"{100 * part.accuracy:5.1f}" for part in parts)
    depths = " ".join(f"{part.value_depth:.2f}" for part in parts)
    print(
        f"{name:13s} {100 * outcome.accuracy:5.1f} | {accuracies} | mean depth "
        f"{outcome.mean_depth:.2f}, of values {outcome.value_depth:.2f} | {depths}",
        flush=True,
    )


def read_heldout(path: Path) -> list[HeldOut]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [HeldOut(**json.loads(line)) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate a demo checkpoint in plain torch.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = json.loads((options.folder / "config.json").read_text(encoding="utf-8"))
    problems = read_heldout(options.folder / "heldout.jsonl")
    print_report(load_model(options.folder), problems, config["early_exit_threshold"])


if __name__ == "__main__":
    main()
