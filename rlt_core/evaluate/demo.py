"""Accuracy against depth on held-out problems: what the loops of a model are worth.

Three engines are measured: `last_exited` in modes skip and full, and `last_step`. Each runs every
problem at 1 to D loops and at a few exit thresholds; the depths of the best thresholds, shuffled
over the problems, show whether the gate really chooses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.evaluate.problems import Problem

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
# Wide ticks: the problems are many and short.
SIZES: dict[str, Any] = {"max_num_seqs": 256, "max_num_tokens": 2048, "max_model_len": 256}
ENGINES: tuple[dict[str, Any], ...] = (
    {"kv_layout": "last_exited", "exit_mode": "skip"},
    {"kv_layout": "last_exited", "exit_mode": "full"},
    {"kv_layout": "last_step", "exit_mode": "skip"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Accuracy (0 to 1) and mean depths of one setting, over all problems or one grade.

    depth is the mean over all generated tokens, value_depth that over the answers' value tokens.
    """

    engine: str
    setting: str
    grade: int | None
    num_problems: int
    accuracy: float
    depth: float
    value_depth: float

    def as_dict(self) -> dict[str, Any]:
        """For one JSON line."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """One problem's outcome: right or not, all exit depths, the value token's one."""

    problem: Problem
    right: bool
    depths: list[int]
    value_depth: int | None


def evaluate(
    model: str | None, problems: Sequence[Problem], notify: Callable[[str], None], **options: Any
) -> Iterator[Score]:
    """Scores of every engine and setting, per grade and overall, as they come."""
    traced: list[Answer] = []
    for choice in ENGINES:
        name = f"{choice['kv_layout']} {choice['exit_mode']}"
        with LLM(model, **choice, **SIZES, **options) as llm:
            for setting, params in _settings(llm.loops):
                notify(f"{name}, {setting}")
                answers = ask(llm, problems, params)
                yield from scores(name, setting, answers)
                if choice == ENGINES[0] and setting == f"threshold {THRESHOLDS[0]}":
                    traced = answers
    notify("the same depths, shuffled over the problems")
    yield from scores("last_exited skip", "shuffled", shuffled(model, traced, **options))


def ask(
    llm: LLM, problems: Sequence[Problem], params: SamplingParams | list[SamplingParams]
) -> list[Answer]:
    """Every problem's answer, greedy."""
    outputs = llm.generate([problem.prompt for problem in problems], params, progress=False)
    return [
        _answer(problem, output, _value_place(llm, problem))
        for problem, output in zip(problems, outputs, strict=True)
    ]


def shuffled(
    model: str | None, answers: Sequence[Answer], seed: int = 0, **options: Any
) -> list[Answer]:
    """The problems again, each with the depths that another one's tokens had (policy `trace`)."""
    depths = [answer.depths for answer in answers]
    random.Random(seed).shuffle(depths)
    params = [_greedy(trace=trace) for trace in depths]
    with LLM(model, exit_policy="trace", **ENGINES[0], **SIZES, **options) as llm:
        return ask(llm, [answer.problem for answer in answers], params)


def scores(engine: str, setting: str, answers: Sequence[Answer]) -> Iterator[Score]:
    """One score per grade, then the overall one."""
    grades = sorted({answer.problem.grade for answer in answers})
    for grade in (*grades, None):
        chosen = [a for a in answers if grade is None or a.problem.grade == grade]
        yield Score(
            engine=engine,
            setting=setting,
            grade=grade,
            num_problems=len(chosen),
            accuracy=_mean(a.right for a in chosen),
            depth=_mean(depth for a in chosen for depth in a.depths),
            value_depth=_mean(a.value_depth for a in chosen if a.value_depth is not None),
        )


def _value_place(llm: LLM, problem: Problem) -> int:
    """At which output index a right answer has its value token."""
    end = problem.answer.index(problem.value) + len(problem.value)
    whole = llm.encode(problem.prompt + problem.answer[:end])
    return len(whole) - len(llm.encode(problem.prompt)) - 1


def _answer(problem: Problem, output: RequestOutput, place: int) -> Answer:
    completion = output.outputs[0]
    right = (completion.text or "").strip() == problem.answer.strip()
    depths = completion.exit_depths
    return Answer(problem, right, depths, depths[place] if place < len(depths) else None)


def _settings(loops: int) -> Iterator[tuple[str, SamplingParams]]:
    for depth in range(1, loops + 1):
        yield f"{depth} loops", _greedy(loops=depth, exit_policy="fixed")
    for threshold in THRESHOLDS:
        yield f"threshold {threshold}", _greedy(exit_threshold=threshold)


def _greedy(**values: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=16, **values)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
