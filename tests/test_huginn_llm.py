"""Huginn from a user's side: `LLM`, `rlt run --extra`, defaults of the checkpoint, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.cli import main
from rlt_core.contract.errors import RequestError
from tests.huginn import GOLDEN, MODELS, PROMPTS, expected
from tests.selection import mostly_slow

# Many ticks each: seconds on a quiet machine, minutes on a busy one.
pytestmark = pytest.mark.timeout(300)

SIZES: dict[str, Any] = {"max_num_seqs": 4, "max_num_tokens": 32, "in_process": True}
KINDS: dict[str, dict[str, Any]] = {
    "gen_zero": {"state_scale": 0},
    "gen_warm": {"state_scale": 0, "warm_start": True},
    "gen_state": {},
}
Capture = pytest.CaptureFixture[str]


def ids(name: str, prompt: str) -> dict[str, Any]:
    """A golden prompt as `LLM.generate` takes it."""
    return {"prompt_token_ids": expected(name)[f"{prompt}.ids"].tolist()}


def params(**changes: Any) -> SamplingParams:
    """24 greedy tokens at four loops."""
    fixed = {"max_tokens": 24, "temperature": 0, "loops": 4, "ignore_eos": True}
    return SamplingParams(**{**fixed, **changes})


def table(folder: Path, name: str, prompt: str) -> str:
    """A file with the golden start latents of a prompt and its outputs."""
    path = folder / f"{name}.{prompt}.safetensors"
    save_file({"state_table": expected(name)[f"{prompt}.state_table"]}, path)
    return str(path)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """An engine of huginn_a."""
    with LLM(GOLDEN / "huginn_a", **SIZES) as made:
        yield made


@pytest.mark.parametrize("name", mostly_slow(MODELS))
def test_the_authors_tokens(name: str, tmp_path: Path) -> None:
    """gen_state, gen_zero and gen_warm of every prompt, all in one call (A47)."""
    cases = [(prompt, kind) for prompt in PROMPTS for kind in KINDS]
    asked = []
    for prompt, kind in cases:
        extra = dict(KINDS[kind])
        if kind == "gen_state":
            extra["state_table"] = table(tmp_path, name, prompt)
        asked.append(params(extra=extra))
    with LLM(GOLDEN / name, **SIZES) as made:
        outputs = made.generate([ids(name, prompt) for prompt, _ in cases], asked)
    for (prompt, kind), output in zip(cases, outputs, strict=True):
        wanted = expected(name)[f"{prompt}.{kind}.ids"].tolist()
        assert list(output.outputs[0].token_ids) == wanted, (prompt, kind)
        assert list(output.outputs[0].exit_depths) == [4] * 24


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gen_state", "gen_warm"])
def test_the_command_line(kind: str, tmp_path: Path, capsys: Capture) -> None:
    """The same through `rlt run --extra` and its own stage process."""
    extra = [f"{key}={str(value).lower()}" for key, value in KINDS[kind].items()]
    if kind == "gen_state":
        extra.append(f"state_table={table(tmp_path, 'huginn_b', 'p1')}")
    tokens = ",".join(str(token) for token in ids("huginn_b", "p1")["prompt_token_ids"])
    argv = ["run", str(GOLDEN / "huginn_b"), "--prompt-token-ids", tokens, "--json"]
    argv += ["--max-tokens", "24", "--temperature", "0", "--loops", "4", "--ignore-eos"]
    code = main([*argv, *(part for value in extra for part in ("--extra", value))])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert json.loads(out)["token_ids"] == expected("huginn_b")[f"p1.{kind}.ids"].tolist()


def test_options_that_cannot_be(llm: LLM, tmp_path: Path) -> None:
    """A wrong option fails its own request by name; the next one is answered."""
    short = table(tmp_path, "huginn_a", "p0")
    foreign = table(tmp_path, "huginn_b", "p0")
    for name, value in (
        *[("state_scale", value) for value in (-1, float("nan"), "big", True)],
        *[("state_seed", value) for value in (-1, 0.5)],
        *[("warm_start", value) for value in (1, "on")],
        *[("state_table", value) for value in (str(tmp_path / "none.npy"), short, foreign)],
        ("state_scal", 0),
    ):
        with pytest.raises(RequestError) as caught:
            llm.generate(ids("huginn_a", "p2"), params(extra={name: value}))
        assert name in str(caught.value), (name, value)
        assert len(str(caught.value).splitlines()) <= 4
    assert llm.generate(ids("huginn_a", "p0"), params(max_tokens=2))[0].outputs[0].token_ids


@pytest.mark.slow
def test_a_default_start_is_repeatable(llm: LLM) -> None:
    """The authors' default draws anew in every call; here the seed is 0 unless said (A47)."""
    runs = [
        llm.generate(ids("huginn_a", "p1"), params(max_tokens=8, extra=extra))[0]
        .outputs[0]
        .token_ids
        for extra in (None, {"state_seed": 0}, {"state_seed": 1})
    ]
    assert list(runs[0]) == list(runs[1]) != list(runs[2])


def test_more_loops_than_the_engine_runs(llm: LLM) -> None:
    """Beyond the trained number only up to --max-depth, which may be four times as many."""
    with pytest.raises(RequestError, match="1 to 6"):
        llm.generate(ids("huginn_a", "p0"), params(loops=7))
    with LLM(GOLDEN / "huginn_a", max_depth=9, **SIZES) as deep:
        output = deep.generate(ids("huginn_a", "p0"), params(loops=9, max_tokens=2))[0]
    assert list(output.outputs[0].exit_depths) == [9, 9]


def test_end_ids_of_the_generation_config(tmp_path: Path) -> None:
    """The published config has none: generation_config.json gives a list, any of which ends."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "huginn_a", folder)
    wanted = expected("huginn_a")["p0.gen_zero.ids"].tolist()
    ends = [159, wanted[5]]
    text = json.dumps({"eos_token_id": ends, "do_sample": True, "temperature": 0.7})
    (folder / "generation_config.json").write_text(text)
    with LLM(folder, **SIZES) as made:
        asked = params(extra={"state_scale": 0}, ignore_eos=False)
        answer = made.generate(ids("huginn_a", "p0"), asked)[0].outputs[0]
    stop = min(wanted.index(token) for token in ends if token in wanted)
    assert answer.finish_reason == "stop"
    assert list(answer.token_ids) == wanted[: stop + 1]
