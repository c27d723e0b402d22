"""A model's own options from users: `extra`, files, errors, `rlt explain` and `rlt run --extra`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlt_core.api.llm import LLM
from rlt_core.api.model_options import OptionReader
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.runtime.table_file import read_table
from rlt_core.stage.build import build_engine
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import AddRequests, Ready, decode_answer, decode_request, encode
from rlt_core.stage.stage import BuiltEngine
from rlt_core.testing.tiny import OPTIONS, SPEC
from rlt_core.testing.tiny_model import write_checkpoint
from rlt_core.testing.tiny_plugin import registry_with_tiny
from tests.scripted_engine import report

WIDTH, PROMPT = 32, {"prompt_token_ids": [3, 77, 140, 9, 5]}
SIZES: dict[str, Any] = {"kv_pages": 300, "max_num_seqs": 3, "max_num_tokens": 16, "debug": True}
SERVED = report(model="tiny", model_options=OPTIONS, table_widths={"state_table": WIDTH})


def build(config: StageConfig) -> BuiltEngine:
    """The engine factory: the real one, with the tiny models among the installed."""
    return build_engine(config, registry_with_tiny())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "a", "a")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    options = {**SIZES, "engine_factory": f"{__name__}:build", "max_depth": 7}
    with LLM(folder, in_process=True, **options) as made:
        yield made


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 4, "temperature": 0, "ignore_eos": True, **changes})


def values(rows: int = 16, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def saved(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


def refused(extra: Any, num_positions: int = 9) -> RequestError:
    with pytest.raises(RequestError) as caught:
        OptionReader(SERVED).read(extra, num_positions)
    assert str(caught.value).count("\n") < 4
    return caught.value


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"state_scal": 1.0}, "did you mean state_scale or state_table?); it has state_seed"),
        ({"zzz": 1}, "no such option; it has state_seed, state_scale, state_table, warm_start"),
        ({"state_scale": "0"}, "'0' is not a number"),
        ({"state_scale": True}, "True is not a number"),
        ({"state_scale": float("nan")}, "nan is not a finite number"),
        ({"state_scale": float("inf")}, "inf is not a finite number"),
        ({"state_scale": -0.5}, "-0.5 is out of range: it must be at least 0"),
        ({"state_scale": 1e39}, "1e+39 is out of range"),
        ({"state_seed": 1.5}, "1.5 is not a whole number"),
        ({"state_seed": -1}, "-1 is out of range: it must be at least 0"),
        ({"state_seed": 2**63}, "is out of range"),
        ({"state_seed": None}, "None is not a whole number"),
        ({"warm_start": 1}, "1 is not true or false"),
        ({"state_table": 5}, "5 is not the path of a file"),
        ({"state_table": ""}, "'' is not the path of a file"),
        ({"state_table": "no/such.npy"}, "there is no file"),
        ({"state_table": "a\0b.npy"}, "cannot be read"),
    ],
)
def test_what_is_wrong_with_an_option(extra: dict[str, Any], reason: str) -> None:
    """One short error that names the option and what there is instead; nothing is guessed."""
    error = refused(extra)
    assert error.field == next(iter(extra))
    assert reason in error.reason


def test_what_a_request_becomes(tmp_path: Path) -> None:
    """Every kind arrives as it was meant: a whole number is a float where one is due, numpy's
    numbers count, paths are absolute (the stage may stand elsewhere), the state seed is apart."""
    path = saved(tmp_path / "start.npy", values())
    extra = {
        "state_seed": np.int64(7),
        "state_scale": 0,
        "warm_start": np.True_,
        "state_table": Path(os.path.relpath(path)),
    }
    found = OptionReader(SERVED).read(extra, 16)
    assert (found.state_seed, found.options) == (7, {"state_scale": 0.0, "warm_start": True})
    assert type(found.options["state_scale"]) is float
    assert found.tables == {"state_table": read_table("state_table", path).file}
    assert OptionReader(SERVED).read(None, 16).options == {}
    seeded = replace(OPTIONS[0], default=3)
    served = report(model_options=(seeded,))
    assert OptionReader(served).read({}, 16).state_seed == 3


def test_a_model_without_options() -> None:
    """The list of names would be empty: the error says so."""
    with pytest.raises(RequestError, match="'scripted' declares no options of its own"):
        OptionReader(report()).read({"state_scale": 0.0}, 9)
    with pytest.raises(RequestError, match="extra: 5 is not a table"):
        SamplingParams(extra=5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="extra"):
        SamplingParams(extra={1: 2})  # type: ignore[dict-item]


def test_options_survive_the_wire(tmp_path: Path, llm: LLM) -> None:
    """Truth values, whole numbers, floats and files keep their types; so does the report."""
    path = saved(tmp_path / "t.npy", values())
    request = llm._builder.generate(
        np.array([1, 2]), params(extra={"warm_start": True, "state_table": path}), [4]
    )[0]
    request = replace(request, options={**request.options, "a": 3, "b": 0.0})
    found = decode_request(encode(AddRequests(requests=[request])))
    assert isinstance(found, AddRequests)
    assert (found.requests[0].options, found.requests[0].tables) == (
        request.options,
        request.tables,
    )
    assert [type(value) for value in found.requests[0].options.values()] == [bool, int, float]
    ready = decode_answer(encode(Ready(report=llm.report)))
    assert isinstance(ready, Ready)
    assert ready.report.model_options == SPEC.options
    assert ready.report.table_widths == {"state_table": WIDTH}


def test_each_option_reaches_the_model(llm: LLM, tmp_path: Path) -> None:
    """Each changes the text, siblings share it, and an explicit default is no change."""
    path = saved(tmp_path / "t.npy", values())
    extras: list[dict[str, Any]] = [
        {},
        {"state_seed": 0, "state_scale": 1, "warm_start": False},
        {"state_seed": 1},
        {"state_scale": 0},
        {"state_table": path},
        {"state_table": path, "warm_start": True},
    ]
    asked = [params(extra=extra, max_tokens=5) for extra in extras]
    found = tokens(llm.generate([PROMPT] * len(asked), asked, progress=False))
    assert found[0] == found[1]
    assert len({tuple(text) for text in found}) == len(found) - 1
    both = llm.generate(PROMPT, params(extra=extras[5], max_tokens=5, n=2), progress=False)
    assert [answer.token_ids for answer in both[0].outputs] == [found[5]] * 2


def test_a_bad_file_fails_its_own_request(llm: LLM, tmp_path: Path) -> None:
    """Whether the client finds it or the stage: the others are answered."""
    good, bad = saved(tmp_path / "good.npy", values()), tmp_path / "bad.npy"
    bad.write_bytes(b"no table")
    asked = [params(extra={"state_table": path}) for path in (good, str(bad), good)]
    first, wrong, last = llm.generate([PROMPT] * 3, asked, on_error="return", progress=False)
    assert isinstance(wrong.error, RequestError)
    assert wrong.error.field == "state_table"
    assert tokens([first]) == tokens([last])
    # The client knows the file from before; by the time the stage reads it, it is another one.
    stamp = os.stat(good)
    saved(tmp_path / "good.npy", values(seed=1))
    os.utime(good, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    changed, fine = llm.generate(
        [PROMPT] * 2, [asked[0], params()], on_error="return", progress=False
    )
    assert isinstance(changed.error, RequestError)
    assert "changed after the request was made" in changed.error.reason
    assert len(tokens([fine])[0]) == 4


def test_score_takes_options(llm: LLM, tmp_path: Path) -> None:
    """A text is scored under the options it would be generated with."""
    text = [3, 77, 140, 9, 5, 8]
    path = saved(tmp_path / "t.npy", values(rows=6))
    plain = llm.score(text, prompt_len=3)
    started = llm.score(
        text, prompt_len=3, sampling_params=params(extra={"state_table": path, "warm_start": True})
    )
    assert plain.logprobs[1:] != started.logprobs[1:]
    with pytest.raises(RequestError, match="has 6 rows; prompt and outputs may take 7 positions"):
        llm.score([*text, 1], sampling_params=params(extra={"state_table": path}))


@pytest.mark.slow
def test_a_stage_process_reads_tables(folder: Path, tmp_path: Path, llm: LLM) -> None:
    """The process of a stage stands in no folder of the user's and has its own memory."""
    path = saved(tmp_path / "t.npy", values())
    asked = params(extra={"state_table": os.path.relpath(path), "state_scale": 0.5})
    options = {**SIZES, "engine_factory": f"{__name__}:build", "max_depth": 7}
    with LLM(folder, **options) as remote:
        assert tokens(remote.generate([PROMPT], asked)) == tokens(llm.generate([PROMPT], asked))


@pytest.mark.parametrize("loops", [0, -1, True, 2.5, 8, "3"])
def test_a_bad_depth_names_the_field(llm: LLM, loops: Any) -> None:
    """Depths are whole numbers from 1 to the engine's largest; nothing is rounded (A6)."""
    with pytest.raises(RequestError) as caught:
        llm.generate(PROMPT, params(loops=loops), progress=False)
    assert caught.value.field == "loops"
    assert "\n" not in str(caught.value)


def test_depths_from_1_past_the_trained_ones(llm: LLM) -> None:
    """loops_override: fewer and more loops than the model's own, in one engine together."""
    depths = (1, 5, 6, 7)
    asked = [params(loops=depth, exit_policy="fixed") for depth in depths]
    found = llm.generate([PROMPT] * len(depths), asked, progress=False)
    assert [output.outputs[0].exit_depths for output in found] == [[d] * 4 for d in depths]
    assert len({tuple(text) for text in tokens(found)}) == len(depths)
