"""What the clients ask, and the answers that a model alone gives to it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import CompletionOutput
from rlt_core.evaluate.problems import load_problems
from rlt_core.plugins.model_folder import find_model_folder
from rlt_core.server.openai.completion_request import CompletionRequest

NUM_ASKED = 32
_ALWAYS = {"return_token_ids": True, "return_exit_depths": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One choice as it must come."""

    text: str
    token_ids: list[int]
    exit_depths: list[int]
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request's body and its choices, by index."""

    body: dict[str, Any]
    answers: list[Answer]


def asked(seed: int) -> list[Asked]:
    """Requests of many kinds, answered by a model in this process."""
    draw = random.Random(seed)
    folder = Path(find_model_folder())
    problems = [problem.prompt for problem in load_problems(folder)]
    bodies = [_body(i, draw, problems) for i in range(NUM_ASKED)]
    requests = [CompletionRequest.model_validate(body) for body in bodies]
    prompts = [request.prompts[0] for request in requests]
    with LLM(in_process=True, max_num_seqs=8, max_num_tokens=128) as llm:
        outputs = llm.generate(
            prompts, [request.params() for request in requests], on_error="raise"
        )
    return [
        Asked(body=body, answers=[_answer(one) for one in output.outputs])
        for body, output in zip(bodies, outputs, strict=True)
    ]


def _answer(one: CompletionOutput) -> Answer:
    return Answer(
        text=one.text or "",
        token_ids=one.token_ids,
        exit_depths=one.exit_depths,
        finish_reason=str(one.finish_reason),
    )


def _body(i: int, draw: random.Random, problems: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {**_ALWAYS, "prompt": draw.choice(problems), "temperature": 0}
    body["max_tokens"] = draw.choice((4, 16, 48, 96))
    kind = i % 8
    if kind == 0:
        body.update(ignore_eos=True, max_tokens=128)
    elif kind == 1:
        body.update(temperature=0.9, seed=draw.randrange(1 << 30), ignore_eos=True)
    elif kind == 2:
        body.update(exit_threshold=draw.choice((0.3, 0.6)), ignore_eos=True)
    elif kind == 3:
        body["prompt"] = [draw.randrange(2, 49) for _ in range(draw.choice((40, 90, 140)))]
        body["ignore_eos"] = True
    elif kind == 4:
        body.update(n=2, temperature=0.7, seed=draw.randrange(1 << 30), ignore_eos=True)
    elif kind == 5:
        body.update(stop=[draw.choice((" ", "1", "3"))], temperature=1.0, seed=i)
    elif kind == 6:
        body.update(structured_outputs={"regex": "[0-9]{4,12}"}, temperature=1.0, seed=i)
    else:
        body.update(max_loops=2, repetition_penalty=1.1, logprobs=2, ignore_eos=True)
    return body


def broken(draw: random.Random) -> tuple[str | bytes, str, int]:
    """(body, route, status that it must get) of a request that is wrong."""
    good = '"prompt": "7", "max_tokens": 2'
    cases: tuple[tuple[str | bytes, str, int], ...] = (
        (f"{{{good}", "completions", 400),
        (b"\xff\xfe\x00", "completions", 400),
        (f'{{{good}, "temperature": -1}}', "completions", 400),
        (f'{{{good}, "no_such_field": 1}}', "completions", 400),
        (f'{{{good}, "model": "no-such-model"}}', "completions", 404),
        ('{"prompt": [1, 999999]}', "completions", 400),
        ('{"prompt": ""}', "completions", 400),
        (f'{{{good}, "exit_threshold": 7}}', "completions", 400),
        (f'{{{good}, "structured_outputs": {{"regex": "["}}}}', "completions", 400),
        ('{"messages": [{"role": "nobody", "content": "x"}]}', "chat/completions", 400),
        (f"{{{good}}}", "no/such/route", 404),
    )
    return draw.choice(cases)
