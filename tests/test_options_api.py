"""A model's own options from users: `extra`, files, errors, `rlt explain` and `rlt run --extra`."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from safetensors.torch import save_file

from rlt_core.api.llm import LLM
from rlt_core.api.model_options import OptionReader
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.cli import main
from rlt_core.cli.options import parse_extra
from rlt_core.contract.errors import OptionError, PluginError, RequestError
from rlt_core.contract.specs import ExitPolicySpec, ModelSpec, ParamSpec
from rlt_core.plugins.check_spec import spec_faults
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.resolve import resolve
from rlt_core.runtime.table_file import read_table
from rlt_core.stage.build import build_engine
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import AddRequests, Ready, decode_answer, decode_request, encode
from rlt_core.stage.stage import BuiltEngine
from rlt_core.testing.tiny import OPTIONS, PLAIN_SPEC, SPEC, tiny_shape
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


def _npz(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), values())
    path.with_suffix(".npz").rename(path)


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")


def _tensors(**found: Any) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(save(found))


def _array(array: Any) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        path.write_bytes(buffer.getvalue())

    return write


def _bad(row: int, column: int, value: float) -> Any:
    array = values().astype(np.float64)
    array[row, column] = value
    return array


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("t.npy", lambda path: path.write_bytes(pickle.dumps(values())), "pickle"),
        ("t.npy", _array(np.array([[1], [None]], object)), "allow_pickle=False"),
        ("t.npy", lambda path: path.write_bytes(b""), "t.npy"),
        ("t.npy", _npz, "it is an archive"),
        ("t.npy", _zip, "t.npy"),
        ("t.npy", _array(values()[0]), "has shape [32]; a table is [positions, columns]"),
        ("t.npy", _array(values()[:0]), "has shape [0, 32]"),
        ("t.npy", _array(values().astype(complex)), "a table holds real numbers"),
        ("t.npy", _array(values() > 0), "a table holds real numbers"),
        ("t.npy", _array(_bad(2, 3, np.nan)), "nan in row 2, column 3"),
        ("t.npy", _array(_bad(9, 0, 1e300)), "1e+300 in row 9, column 0 is no finite float32"),
        ("t.npy", _array(values(8)), "has 8 rows; prompt and outputs may take 9 positions"),
        ("t.npy", _array(values()[:, 1:]), "has 31 columns; the model takes 32"),
        ("t.safetensors", lambda path: path.write_bytes(b"{}"), "t.safetensors"),
        ("t.safetensors", _tensors(), "it has none"),
        ("t.safetensors", _tensors(a=values(), b=values()), "it has a, b"),
        ("t.safetensors", _tensors(a=np.zeros((9, 32), np.int32)), "dtype I32"),
        ("t.pt", _array(values()), "neither a .safetensors nor an .npy file"),
        ("t.npy", lambda path: path.mkdir(), "cannot be read"),
    ],
)
def test_files_that_are_no_tables(
    tmp_path: Path, name: str, write: Callable[[Path], object], reason: str
) -> None:
    """Pickles are never opened, and numbers that would poison a state never loaded."""
    path = tmp_path / name
    write(path)
    error = refused({"state_table": str(path)})
    assert error.field == "state_table"
    assert reason in error.reason
    assert str(path) in error.reason


def test_every_way_to_write_a_table(tmp_path: Path) -> None:
    """The same numbers, whatever the file: npy in either order, one tensor or the named one,
    bfloat16 as its float32."""
    import torch

    wanted = torch.as_tensor(values()).bfloat16().float().numpy()
    np.save(tmp_path / "a.npy", np.asfortranarray(wanted.astype(np.float64)))
    (tmp_path / "b.safetensors").write_bytes(save({"anything": wanted}))
    (tmp_path / "c.safetensors").write_bytes(save({"other": wanted[:2], "state_table": wanted}))
    save_file({"table": torch.as_tensor(wanted).bfloat16()}, tmp_path / "d.safetensors")
    for path in sorted(tmp_path.iterdir()):
        assert np.array_equal(read_table("state_table", str(path)).values, wanted), path.name


def test_a_table_is_read_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of prompts must not read a large file for each; another file of the same name is
    another table."""
    reads: list[str] = []
    right = Path.read_bytes

    def read(self: Path) -> bytes:
        reads.append(self.name)
        return right(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    path, reader = saved(tmp_path / "t.npy", values()), OptionReader(SERVED)
    first = [reader.read({"state_table": path}, 9).tables["state_table"] for _ in range(3)]
    assert (len(reads), len(set(first))) == (1, 1)
    saved(tmp_path / "t.npy", values(rows=17, seed=1))
    other = reader.read({"state_table": path}, 9).tables["state_table"]
    assert (len(reads), other.path == first[0].path, other == first[0]) == (2, True, False)


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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "two words"}, "a name is an identifier"),
        ({"kind": "depths"}, "kind 'depths' is not one of float, int, flag, table"),
        ({"default": None}, "None is no default for kind 'float'"),
        ({"kind": "flag", "default": 0}, "0 is no default for kind 'flag'"),
        ({"kind": "table", "default": 1.0}, "1.0 is no default for kind 'table'"),
        ({"name": "state_seed"}, "keys the random bits"),
    ],
)
def test_options_that_a_plugin_declares_wrongly(changes: dict[str, Any], reason: str) -> None:
    """Found at discovery, as the plugin's error; a request would find it too late."""
    option = replace(OPTIONS[1], **changes)
    assert any(reason in fault for fault in spec_faults(replace(SPEC, options=(option,))))
    assert not list(spec_faults(SPEC))


def test_what_only_models_declare() -> None:
    """Policies take numbers: a flag of theirs would never arrive. Names are used once, and the
    reader of a model with tables must say how wide they are."""
    param = ParamSpec(name="x", kind="flag", summary="", default=False)
    policy = ExitPolicySpec(id="p", summary="", factory="a.b:C", params=(param,))
    assert any("of a kind that models have" in fault for fault in spec_faults(policy))
    twice: ModelSpec = replace(SPEC, options=(OPTIONS[1], OPTIONS[1]))
    assert any("used once" in fault for fault in spec_faults(twice))
    narrow = replace(tiny_shape("a"), table_widths={})
    with pytest.raises(PluginError, match=r"table_widths\['state_table'\]"):
        resolve(Choice(model="tiny"), registry_with_tiny(), shape=narrow)
    assert PLAIN_SPEC.options == ()


def test_extra_on_the_command_line() -> None:
    """Numbers and truth values as such, other text as it stands (a path)."""
    given = ["state_scale=0", "warm_start=true", "state_table=a=b.npy", "state_seed=5"]
    assert parse_extra(given) == {
        "state_scale": 0,
        "warm_start": True,
        "state_table": "a=b.npy",
        "state_seed": 5,
    }
    for text in ("state_scale", "=1", "state_scale="):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            parse_extra([text])


def test_explain_and_plugins_show_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """A user finds names, kinds, ranges and defaults without reading the plugin."""
    import rlt_core.cli.explain as explain
    import rlt_core.cli.plugins as plugins

    for module in (explain, plugins):
        monkeypatch.setattr(module, "discover", registry_with_tiny)
    assert main(["explain", str(folder)]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "model option" in line]
    assert len(shown) == len(OPTIONS)
    assert "float, at least 0, default 1" in shown[1]
    assert "flag, default false" in shown[3]
    assert main(["explain", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["model"]["options"]
    assert [option["name"] for option in listed] == [spec.name for spec in OPTIONS]
    assert main(["plugins"]) == 0
    assert "options of tiny: state_seed, state_scale, state_table" in capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    found = {p["name"]: p for p in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["tiny"]["model_options"]["tiny"][3]["chains"] is True
    assert found["tiny"]["model_options"]["tiny_plain"] == []


def test_rlt_run_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, llm: LLM
) -> None:
    """The command line gives what the Python object gives; a wrong option is two lines."""
    from rlt_core.cli import run_request
    from rlt_core.cli import run_session as session

    monkeypatch.setattr(run_request, "find_model_folder", lambda name: name)
    factory = f"{__name__}:build"
    monkeypatch.setattr(session, "LLM", lambda *a, **o: LLM(*a, **o, engine_factory=factory))
    argv = ["run", str(folder), "--prompt-token-ids", "3,77,140,9,5", "--in-process", "--json"]
    argv += ["--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--kv-pages", "300"]
    assert main([*argv, "--extra", "state_scale=0", "--extra", "warm_start=true"]) == 0
    found = json.loads(capsys.readouterr().out)["token_ids"]
    asked = params(extra={"state_scale": 0.0, "warm_start": True})
    assert [found] == tokens(llm.generate([PROMPT], asked, progress=False))
    assert main([*argv, "--extra", "state_scal=0"]) == 2
    said = capsys.readouterr().err
    assert "state_scal: model 'tiny' has no such option (did you mean state_scale" in said
