"""lm-eval's local-completions on the demo model gives the scores that rlt computes itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.evaluate.demo import ask
from rlt_core.evaluate.problems import Problem, load_problems
from rlt_core.plugins.model_folder import find_model_folder
from tests.server_kit import RunningServer, running

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="needs rlt-core[server-tests]"
    ),
]
SIZES: dict[str, Any] = {"in_process": True, "max_num_seqs": 8, "max_num_tokens": 128}
NUM_PROBLEMS, NUM_CHOICES = 24, 6
GENERATE = """
task: demo_generate
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
generation_kwargs: {until: ["\\n"], do_sample: false, temperature: 0, max_gen_toks: 16}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
task: demo_choose
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return load_problems(Path(find_model_folder(None)))[:NUM_PROBLEMS]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(AsyncLLM(None, max_waiting=256, **SIZES)) as found:
        yield found


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(None, **SIZES) as made:
        yield made


def evaluated(server: RunningServer, folder: Path, task: str, rows: list[dict[str, Any]]) -> Any:
    """lm-eval's results of a task of its own, run as a user runs it."""
    data = folder / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(task.replace("FILE", str(data)))
    name = task.split("task: ")[1].split()[0]
    settings = {
        "model": "demo",
        "base_url": f"{server.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(server.llm.model_path),
        "num_concurrent": 4,
        "max_retries": 1,
        "max_length": 256,
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in settings.items())]
    command += [
        "--tasks",
        name,
        "--include_path",
        str(folder),
        "--output_path",
        str(folder / "out"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    env = {**os.environ, **offline, "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = (folder / "out").rglob("results_*.json")
    return json.loads(found.read_text())["results"][name]


def test_generated_answers_score_as_in_rlt_eval(
    server: RunningServer, llm: LLM, problems: list[Problem], tmp_path: Path
) -> None:
    """A harness that speaks to the server saw other answers than `rlt eval`."""
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    found = evaluated(server, tmp_path, GENERATE, rows)
    right = [a.right for a in ask(llm, problems, SamplingParams(temperature=0, max_tokens=16))]
    assert 0 < sum(right)
    assert found["exact_match,none"] == pytest.approx(sum(right) / len(right))


def test_likelihoods_choose_as_scores_do(
    server: RunningServer, llm: LLM, problems: list[Problem], tmp_path: Path
) -> None:
    """Echoed logprobs stood one place off, so that a harness measured chance."""
    rows = [{"prompt": p.prompt, "choices": choices(p)} for p in problems]
    found = evaluated(server, tmp_path, CHOOSE, rows)
    right = [best(llm, p, choices(p)) == 0 for p in problems]
    assert sum(right) > len(right) / NUM_CHOICES
    assert found["acc,none"] == pytest.approx(sum(right) / len(right))


def choices(problem: Problem) -> list[str]:
    """The right answer, then wrong ones."""
    digits = [str((int(problem.value) + step) % 10) for step in range(NUM_CHOICES)]
    return [problem.answer.replace(problem.value, digit) for digit in digits]


def best(llm: LLM, problem: Problem, answers: list[str]) -> int:
    """The likeliest answer's place, every position read at full depth as in a prompt."""
    totals = []
    for answer in answers:
        tokens, start = llm.encode(problem.prompt + answer), len(llm.encode(problem.prompt))
        scores = llm.score(tokens, prompt_len=len(tokens)).logprobs[start:]
        totals.append(sum(score for score in scores if score is not None))
    return totals.index(max(totals))
