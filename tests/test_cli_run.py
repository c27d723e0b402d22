"""`rlt run`: arguments, output and errors, on the scripted engine."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from rlt_core.api.llm import LLM
from rlt_core.cli import main
from rlt_core.cli.run_request import RunRequest, read_ids
from rlt_core.contract.errors import OptionError
from tests.scripted_engine import REFUSE, VOCAB

WORDS = ["<end>", "Ann", "has", "7", ".", "Ann?"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a tokenizer and two held-out problems."""
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "model"
    path.mkdir()
    made.save(str(path / "tokenizer.json"))
    problems = [
        {"prompt": "Ann has 7", "answer": " Ann has 7", "value": "7", "grade": 0},
        {"prompt": "7 .", "answer": " 7 7", "value": "7", "grade": 1},
    ]
    lines = "".join(json.dumps(problem) + "\n" for problem in problems)
    (path / "heldout.jsonl").write_text(lines)
    return path


@pytest.fixture
def rlt(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `rlt run ...` on the scripted engine; the demo is `folder`."""

    def find(name: str | None) -> str:
        return str(folder) if name in (None, str(folder)) else real(name)

    from rlt_core.cli import run_request, run_session
    from rlt_core.plugins.model_folder import find_model_folder as real

    scripted = functools.partial(LLM, engine_factory="tests.scripted_engine:build")
    monkeypatch.setattr(run_request, "find_model_folder", find)
    monkeypatch.setattr(run_session, "LLM", scripted)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["run", *argv, "--in-process"])
        return code, *capsys.readouterr()

    return run


def test_ids_in_json_out(rlt: Run, folder: Path) -> None:
    """--json printed more than one object, or notes among them."""
    (folder / "tokenizer.json").unlink()
    code, out, _ = rlt(
        str(folder),
        "--prompt-token-ids",
        "1,2, 3",
        "--max-tokens",
        "4",
        "--logprobs",
        "2",
        "--json",
    )
    found = json.loads(out)
    assert code == 0
    assert found["prompt_token_ids"] == [1, 2, 3]
    assert (found["token_ids"], found["text"]) == ([1, 2, 3, 1], None)
    assert (found["exit_depths"], found["finish_reason"]) == ([1, 2, 3, 4], "length")
    assert found["usage"]["completion_tokens"] == 4
    assert found["usage"]["mean_depth"] == 2.5
    assert [entry["token_id"] for entry in found["logprobs"]] == [1, 2, 3, 1]
    assert found["logprobs"][0]["top"][1]["token_id"] == 2
    assert found["sampling"]["temperature"] == 1.0


def test_several_prompts_one_of_them_bad(rlt: Run, folder: Path) -> None:
    """One bad prompt of three cost the other two their answers, or the exit code was 0."""
    args = ["--max-tokens", "1", "--prompt", "Ann has"]
    for ids in ("3", str(VOCAB)):
        args += ["--prompt-token-ids", ids]
    code, out, _ = rlt(str(folder), *args, "--json")
    first, second, third = map(json.loads, out.splitlines())
    assert code == 2
    assert (first["text"], second["token_ids"]) == (" Ann", [3])
    assert "outside the vocabulary" in third["error"]
    code, out, err = rlt(str(folder), *args)
    assert (code, out) == (2, "Ann\n7\n")
    assert "prompt 3: prompt_token_ids: token id 300" in err


def test_n_answers(rlt: Run) -> None:
    """Only the first of n answers was printed."""
    _, out, _ = rlt("--prompt", "Ann has", "--n", "2", "--max-tokens", "2", "--json")
    assert len(json.loads(out)["outputs"]) == 2


def test_problem_of_the_held_out_file(rlt: Run) -> None:
    """The expected answer stood beside another problem's, or a wrong answer was called right."""
    code, out, err = rlt("--seed", "0", "--max-tokens", "3")
    lines = out.splitlines()
    assert code == 0
    assert lines[:3] == ["Ann has 7", "Ann has 7", "expected: Ann has 7 (right)"]
    assert lines[3] == "exit depths: Ann(1) has(2) 7(3)"
    assert "3 tokens" in lines[4]
    assert "mean depth 2.00" in lines[4]
    assert "demo" in err
    _, out, _ = rlt("--seed", "1", "--max-tokens", "2")
    assert "expected: 7 7 (wrong)" in out
    _, out, _ = rlt("--seed", "1", "--max-tokens", "2", "--json")
    found = json.loads(out)
    assert (found["expected"], found["sampling"]["temperature"]) == ("7 7", 0.0)
    code, _, err = rlt("--seed", "2")
    assert (code, err) == (2, "--seed 2: heldout.jsonl has the problems 0 to 1\n")


def test_prompt_for_the_demo(rlt: Run) -> None:
    """A single prompt was taken for a model folder."""
    code, out, err = rlt("Ann has 7", "--max-tokens", "2")
    assert (code, out) == (0, "Ann has\n")
    assert "exit depths: Ann(1) has(2)" in err
    assert "tokens/s" in err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nosuch",), "no such model folder"),
        (("a" * 300,), "no such model folder"),
        (("Ann has 7. Ann?", "--prompt-token-ids", "5"), "if it is a prompt for the demo"),
        (("./no such",), "no such model folder"),
        (("",), "prompt: is empty"),
        (("{folder}",), "no prompt for"),
        (("{folder}", ""), "prompt: is empty"),
        (("{folder}", "--prompt-token-ids", ""), "prompt_token_ids: is empty"),
        (("{folder}", "--prompt-token-ids", "1,x"), "--prompt-token-ids '1,x'"),
        (("{folder}", "--prompt-token-ids", "-1"), "token id -1 is outside the vocabulary"),
        (("{folder}", "--prompt-token-ids", str(REFUSE)), "refused by the engine"),
        (("{folder}", "Ann", "--temperature", "nan"), "temperature: nan is not a finite number"),
        (("{folder}", "Ann", "--top-p", "2"), "top_p: 2.0 is out of range"),
        (("{folder}", "Ann", "--max-tokens", "0"), "max_tokens: 0 is out of range"),
        (("{folder}", "Ann", "--max-tokens", "many"), "--max-tokens"),
        (("{folder}", "Ann", "--loops", "5"), "loops: 5 is out of range: it must be 1 to 4"),
        (("{folder}", "Ann", "--exit-threshold", "2"), "exit_threshold: 2.0 is out of range"),
        (("{folder}", "Ann", "--page-size", "0"), "page_size 0"),
        (("{folder}", "Ann", "--exit-mode", "half"), "--exit-mode"),
        (("{folder}", "Ann", "--nonsense"), "--nonsense"),
        (("{folder}", "Ann", "--tokenizer", "/no/such"), "no tokenizer"),
    ],
)
def test_bad_input_gets_a_short_message(
    rlt: Run, folder: Path, argv: tuple[str, ...], says: str
) -> None:
    """A wrong option ended in a traceback, in exit code 0, or printed half an answer."""
    code, out, err = rlt(*(part.format(folder=folder) for part in argv))
    assert (code, out) == (2, "")
    assert says in err
    assert 1 <= len([line for line in err.splitlines() if line.strip()]) <= 4


def test_text_without_a_tokenizer(rlt: Run, folder: Path) -> None:
    """Text for a checkpoint without a tokenizer failed after the weights had been loaded."""
    (folder / "tokenizer.json").unlink()
    code, _, err = rlt(str(folder), "Ann has")
    assert code == 2
    assert "has no tokenizer" in err
    assert "--prompt-token-ids" in err
    (folder / "tokenizer.json").write_text("{")
    code, _, err = rlt(str(folder), "Ann has")
    assert code == 2
    assert "tokenizer cannot be read" in err


@pytest.mark.parametrize(
    ("name", "is_prompt"),
    [
        ("What is 2 + 2?", True),
        (f"{'Ann has 7. ' * 30} Ann?", True),  # no file has a name so long
        ("a" * 300, False),
        ("yes/no and so on", True),
        ("word", False),
        ("a/path", False),
        ("./a path", False),
        ("/a path", False),
        ("~/a path", False),
        ("{folder} with space", False),
    ],
)
def test_one_argument_alone(tmp_path: Path, name: str, is_prompt: bool) -> None:
    """A folder with a space in its name was taken for a prompt, a misspelt one too."""
    spaced = tmp_path / "x with space"
    spaced.mkdir()
    request = ask(name.format(folder=tmp_path / "x"))
    assert request._first_is_prompt() is is_prompt
    shutil.rmtree(spaced)
    assert not ask(name, token_ids=[[1]])._first_is_prompt()


def ask(model: str, **changes: Any) -> RunRequest:
    values: dict[str, Any] = {
        "model": model,
        "prompt": None,
        "prompts": [],
        "token_ids": [],
        "seed": None,
        "options": {},
        "params": {},
    }
    return RunRequest(**{**values, **changes})


def test_ids_are_whole_numbers() -> None:
    """A stray comma or letter in a list of ids became another id."""
    assert read_ids("--ids", " 5,17, 3 ") == [5, 17, 3]
    assert read_ids("--ids", "") == []
    for text in ("5,,3", "a", "1.5", "5,"):
        with pytest.raises(OptionError):
            read_ids("--ids", text)
