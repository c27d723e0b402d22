"""Problems about chains of quantities, the held-out file, and training batches of them.

A problem is eight statements in order of dependence and one asked name:
``Ann has 7. Cy has Ann + 2. ... Cy?`` is answered by `` Cy has 9.``. Quantities count modulo 10.
The grade of a problem is the number of additions between a stated number and the asked one.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.tokenizer import ASK, DIGITS, EOS_ID, HAS, IDS, NAMES, NEXT, PLUS, STOP

NUM_STATEMENTS = 8
GRADES = range(4)
HELDOUT_SEED = 20_251_129
# Deep problems hold all shallower ones too (every name is asked in training), so they weigh more.
TRAINING_WEIGHTS = (1, 1, 2, 3)
ROOT_SHARE = 0.25
NO_TARGET = -100
FACTS, PADDING = 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``name has amount`` without a base, else ``name has base + amount``."""

    name: str
    base: str | None
    amount: int

    def tokens(self) -> list[str]:
        source = [self.base, PLUS] if self.base is not None else []
        return [self.name, HAS, *source, DIGITS[self.amount], NEXT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Eight statements, the asked name, and for every name its value and its grade."""

    statements: tuple[Statement, ...]
    asked: str
    values: dict[str, int]
    grades: dict[str, int]

    @property
    def facts(self) -> str:
        """The statements' text, with the space that precedes the question."""
        return "".join(token for line in self.statements for token in line.tokens())

    @property
    def prompt(self) -> str:
        return self.facts + self.asked + ASK

    @property
    def value(self) -> str:
        return DIGITS[self.values[self.asked]]

    @property
    def answer(self) -> str:
        return f" {self.asked}{HAS}{self.value}{STOP}"

    @property
    def grade(self) -> int:
        return self.grades[self.asked]


def draw_problem(rng: random.Random, grade: int, highest: int = GRADES[-1]) -> Problem:
    """A problem whose asked name ends a chain of `grade` additions, among distractor chains.

    No name has a grade above `highest`.
    """
    names = rng.sample(NAMES, NUM_STATEMENTS)
    chain = sorted(rng.sample(range(NUM_STATEMENTS), grade + 1))
    statements: list[Statement] = []
    values: dict[str, int] = {}
    grades: dict[str, int] = {}
    for place, name in enumerate(names):
        base = (
            _base_on_chain(names, chain, place) if place in chain else _base(rng, grades, highest)
        )
        amount = rng.randrange(10) if base is None else rng.randrange(1, 10)
        statements.append(Statement(name=name, base=base, amount=amount))
        values[name] = amount if base is None else (values[base] + amount) % 10
        grades[name] = 0 if base is None else grades[base] + 1
    asked = names[chain[-1]]
    return Problem(statements=tuple(statements), asked=asked, values=values, grades=grades)


def _base_on_chain(names: list[str], chain: list[int], place: int) -> str | None:
    before = chain.index(place) - 1
    return None if before < 0 else names[chain[before]]


def _base(rng: random.Random, grades: dict[str, int], highest: int) -> str | None:
    usable = [name for name, grade in grades.items() if grade < highest]
    return rng.choice(usable) if usable and rng.random() > ROOT_SHARE else None


def facts_hash(facts: str) -> str:
    """SHA-256 of a problem's statements: equal facts are one problem, whatever name is asked."""
    return hashlib.sha256(facts.encode()).hexdigest()


def heldout_problems(per_grade: int = 600, seed: int = HELDOUT_SEED) -> list[Problem]:
    """The held-out problems: `per_grade` of every grade in random order, no facts twice."""
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    for grade in GRADES:
        goal = len(found) + per_grade
        while len(found) < goal:
            problem = draw_problem(rng, grade)
            found.setdefault(facts_hash(problem.facts), problem)
    problems = list(found.values())
    rng.shuffle(problems)
    return problems


def training_problem(rng: random.Random, highest: int, rejected: Collection[str]) -> Problem:
    """A problem of grades up to `highest` whose facts hash is not in `rejected`."""
    weights = TRAINING_WEIGHTS[GRADES[-1] - highest :]
    while True:
        (grade,) = rng.choices(range(highest + 1), weights)
        problem = draw_problem(rng, grade, highest)
        if facts_hash(problem.facts) not in rejected:
            return problem


def write_heldout(path: Path, problems: Iterable[Problem]) -> None:
    """One JSON object a line: prompt, answer (the exact text), value, grade."""
    with path.open("w", encoding="utf-8") as file:
        for problem in problems:
            keys = ("prompt", "answer", "value", "grade")
            file.write(json.dumps({key: getattr(problem, key) for key in keys}) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Packed problems, every tensor int64 [problems, tokens].

    `segments` is 0 for the statements, 1 to 8 for the questions and -1 for padding. A question
    sees the statements and itself, and its positions follow the statements', so each of the
    eight is computed as if it were the only one. `targets` is -100 where nothing is learnt.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor

    def mask(self) -> Tensor:
        """bool [problems, 1, tokens, tokens]: may the row read the column."""
        rows, columns = self.segments[:, :, None], self.segments[:, None, :]
        readable = (columns == FACTS) | ((columns == rows) & (columns != PADDING))
        size = self.tokens.shape[1]
        order = torch.ones(size, size, dtype=torch.bool, device=self.tokens.device).tril()
        itself = torch.eye(size, dtype=torch.bool, device=self.tokens.device)
        return ((readable & order) | itself)[:, None]

    def to(self, device: str) -> Batch:
        moved = (t.to(device) for t in (self.tokens, self.positions, self.segments, self.targets))
        tokens, positions, segments, targets = moved
        return Batch(tokens=tokens, positions=positions, segments=segments, targets=targets)


def pack(rng: random.Random, problems: list[Problem]) -> Batch:
    """A batch in which every name of every problem is asked once, in random order."""
    facts = [[IDS[t] for line in p.statements for t in line.tokens()] for p in problems]
    width = max(map(len, facts))
    rows = [_row(rng, *pair, width) for pair in zip(problems, facts, strict=True)]
    tokens, positions, segments, targets = torch.tensor(rows).unbind(1)
    return Batch(tokens=tokens, positions=positions, segments=segments, targets=targets)


def _row(rng: random.Random, problem: Problem, facts: list[int], width: int) -> list[list[int]]:
    num_facts, num_padding = len(facts), width - len(facts)
    tokens = facts + [EOS_ID] * num_padding
    positions = list(range(num_facts)) + [0] * num_padding
    segments = [FACTS] * num_facts + [PADDING] * num_padding
    targets = [NO_TARGET] * width
    for segment, name in enumerate(rng.sample(sorted(problem.values), NUM_STATEMENTS), 1):
        answer = [IDS[t] for t in (" " + name, HAS, DIGITS[problem.values[name]], STOP)]
        tokens += [IDS[name], IDS[ASK], *answer]
        positions += range(num_facts, num_facts + len(answer) + 2)
        segments += [segment] * (len(answer) + 2)
        targets += [NO_TARGET, *answer, EOS_ID]
    return [tokens, positions, segments, targets]
