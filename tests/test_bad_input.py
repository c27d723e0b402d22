"""What bad input gets from `rlt run` on the real engine: one to four lines, exit code 2."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rlt_core.cli import main
from rlt_core.testing.byte_tokenizer import write_byte_tokenizer
from tests.engines import GOLDEN

FOLDER = GOLDEN / "ouro_a"
Run = Callable[..., tuple[int, str, str]]
IDS = ("--prompt-token-ids", "5,17,3", "--max-tokens", "2")


@pytest.fixture
def rlt(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `rlt run ... --in-process`; (exit code, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        # The last of two wins, so that a case may give its own pages.
        code = main(["run", "--in-process", "--kv-pages", "40", *argv])
        return code, *capsys.readouterr()

    return run


def refused(answer: tuple[int, str, str], *says: str) -> None:
    """Exit code 2, nothing on stdout, one to four lines that say all of this, no traceback."""
    code, out, err = answer
    assert (code, out) == (2, ""), err
    assert 1 <= len([line for line in err.splitlines() if line.strip()]) <= 4, err
    assert "Traceback" not in err
    for part in says:
        assert part in err


def copied(tmp_path: Path) -> Path:
    """The golden checkpoint's two files in a folder of their own."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / name, folder)
    return folder


def set_fields(**fields: object) -> Callable[[Path], None]:
    """Changes config.json; ... removes a field."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        config = json.loads(file.read_text()) | fields
        file.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))

    return change


def set_weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Changes the bytes of model.safetensors."""

    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return apply


def remove(*names: str) -> Callable[[Path], None]:
    """Removes files."""

    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def write(name: str, text: str) -> Callable[[Path], None]:
    """Writes a file."""

    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


LAYERS = ["full_attention"]
CHECKPOINTS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no folder": (shutil.rmtree, ("no such model folder", "Fix:")),
    "no config": (remove("config.json"), ("has no config.json", "model.safetensors")),
    "empty folder": (remove("config.json", "model.safetensors"), ("it is empty",)),
    "broken config": (write("config.json", '{"a":'), ("cannot be read as JSON",)),
    "config is a list": (write("config.json", "[]"), ("not an object",)),
    "unknown type": (
        set_fields(model_type="ouroo", architectures=["X"]),
        ("unknown model type 'ouroo'", "did you mean ouro?", "ouro\n", "rlt-ouro"),
    ),
    "no type": (set_fields(model_type=..., architectures=...), ("'model_type' is missing",)),
    "unknown field": (set_fields(odd=3), ("'odd' is unknown", "--ignore-config odd")),
    "missing field": (set_fields(rope_theta=...), ("'rope_theta' is missing",)),
    "float16": (set_fields(torch_dtype="float16"), ("float16", "--ignore-config torch_dtype")),
    "no weights": (remove("model.safetensors"), ("no model.safetensors",)),
    "cut short": (set_weights(lambda w: w[: len(w) // 2]), ("damaged or cut short",)),
    "cut in the header": (set_weights(lambda w: w[:4]), ("damaged or cut short",)),
    "no bytes": (set_weights(lambda w: b""), ("damaged or cut short",)),
    "header not text": (
        set_weights(lambda w: w[:8] + b"\xff" * 99 + w[107:]),
        ("damaged or cut short",),
    ),
    "header too long": (
        set_weights(lambda w: struct.pack("<Q", 1 << 60) + w[8:]),
        ("damaged or cut short",),
    ),
    "too few layers": (
        set_fields(num_hidden_layers=5, layer_types=LAYERS * 5),
        ("missing 22: model.layers.3.", "and 14 more"),
    ),
    "too many layers": (
        set_fields(num_hidden_layers=2, layer_types=LAYERS * 2),
        ("left over 11: model.layers.2.",),
    ),
    "wrong shapes": (
        set_fields(intermediate_size=96),
        ("misshapen 9:", "[64, 112] (the model wants [64, 96])"),
    ),
    "broken tokenizer": (write("tokenizer.json", "{"), ("tokenizer cannot be read",)),
    "broken defaults": (
        write("generation_config.json", '{"temperature": "hot"}'),
        ("generation_config.json", "'temperature'"),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_used(rlt: Run, tmp_path: Path, name: str) -> None:
    """A damaged or foreign checkpoint ended in a traceback, or was loaded all the same
    (CASES A7, A8, A20)."""
    change, says = CHECKPOINTS[name]
    folder = copied(tmp_path)
    change(folder)
    refused(rlt(str(folder), *IDS), *says)


OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--kv-layout", "shared", "--exit-mode", "full"): ("'full'", "'shared'", "--exit-mode skip"),
    ("--kv-layout", "nosuch"): ("unknown KV layout 'nosuch'", "last_exited"),
    ("--exit-policy", "gatte"): ("did you mean gate?",),
    ("--exit-policy", "trace"): ("depth of every output", "--trace"),
    ("--exit-policy", "trace", "--trace", "4,x"): ("--trace '4,x'",),
    ("--exit-policy", "trace", "--trace", "4,5"): ("depth 5 is out of range",),
    ("--trace", "4,1"): ("trace: exit policy 'gate' has no such parameter",),
    ("--exit-policy", "fixed", "--exit-threshold", "0.5"): ("exit_threshold", "'fixed'"),
    ("--dtype", "float16"): ("--dtype bfloat16",),
    ("--device", "cuda:99"): ("--device 'cuda:99'", "--device cpu"),
    ("--device", "gpu"): ("--device cpu",),
    ("--page-size", "7"): ("1, 2, 4, 8, 16, 32, 64, 128",),
    ("--max-depth", "9"): ("at most 4 loops", "--max-depth 4"),
    ("--max-model-len", "999999"): ("65536 positions",),
    ("--kv-memory", "100"): ("kv_pages 40", "kv_memory 100"),
    ("--kv-memory", "-5"): ("kv_memory -5",),
    ("--kv-pages", "4"): ("the pool has 4 pages", "at least 5"),
    ("--max-num-seqs", "0"): ("max_num_seqs 0",),
    ("--max-num-seqs", "9" * 23): ("max_num_seqs 9999", "at most 1099511627776"),
    ("--max-tokens", "9" * 23): ("max_tokens: 9999", "1 to 2147483647"),
    ("--chunk-size", "0"): ("chunk_size 0",),
    ("--temperature", "nan"): ("nan is not a finite number",),
    ("--exit-threshold", "nan"): ("nan is not a finite number",),
    ("--temperature", "hot"): ("--temperature",),
    ("--loops", "0"): ("loops: 0 is out of range",),
    ("--loops", "5"): ("loops: 5 is out of range: it must be 1 to 4",),
    ("--min-loops", "3", "--max-loops", "2"): ("min_loops: 3",),
    ("--n", "0"): ("n: 0 is out of range",),
    ("--logprobs", "99"): ("0 to 20",),
    ("--stop-token-ids", "160"): ("token id 160 is outside the vocabulary",),
    ("--stop", "x"): ("stop",),
    ("--op", "linear"): ("OP=CANDIDATE",),
    ("--op", "linear=no.such"): ("no.such",),
    ("--tokenizer", "/no/such"): ("no tokenizer",),
    ("--nonsense",): ("--nonsense",),
}


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(a, marks=() if i % 3 == 0 else pytest.mark.slow, id=" ".join(a))
        for i, a in enumerate(OPTIONS)
    ],
)
def test_an_option_that_cannot_be_used(rlt: Run, argv: tuple[str, ...]) -> None:
    """An option out of range, NaN or of the wrong type was ignored, or ended in a traceback
    (CASES A6, A9, A100)."""
    refused(rlt(str(FOLDER), *IDS, *argv), *OPTIONS[argv])


def test_a_prompt_that_cannot_be_answered(rlt: Run, tmp_path: Path) -> None:
    """A prompt that is empty, too long or of unknown ids was answered with nonsense (CASES A87)."""
    golden, ids = str(FOLDER), "--prompt-token-ids"
    refused(rlt(golden, ""), "no tokenizer", ids)
    refused(rlt(golden, "text"), "no tokenizer", ids)
    refused(rlt(golden, ids, ""), "is empty")
    refused(rlt(golden, ids, "5,x"), "'5,x'")
    refused(rlt(golden, ids, "5,-1"), "-1 is outside the vocabulary (0 to 159)")
    refused(rlt(golden, ids, "5,160"), "160 is outside the vocabulary (0 to 159)")
    long = ",".join(["1"] * 150)
    refused(rlt(golden, ids, long), "150 tokens", "145", "144")
    refused(rlt(golden, ids, long, "--max-model-len", "64"), "150 tokens", "64")
    folder = copied(tmp_path)
    write_byte_tokenizer(folder)
    refused(rlt(str(folder), ""), "prompt: is empty")
    refused(rlt(str(folder)), "no prompt for", "Fix:")


def test_one_bad_prompt_of_two(rlt: Run) -> None:
    """One bad prompt took the other's answer with it, or was not seen in the exit code."""
    both = ("--prompt-token-ids", "999", *IDS, "--temperature", "0")
    code, out, err = rlt(str(FOLDER), *both)
    assert code == 2
    assert len(out.splitlines()) == 1
    assert "prompt 1: prompt_token_ids: token id 999" in err
    code, out, _ = rlt(str(FOLDER), *both, "--json")
    bad, good = map(json.loads, out.splitlines())
    assert code == 2
    assert "999" in bad["error"]
    assert len(good["token_ids"]) == 2


def test_a_trace_is_replayed(rlt: Run) -> None:
    """The policy `trace` could be asked for, but nothing on the command line gave it depths."""
    # A stop id that is drawn would end it before its third depth, once in about 100 runs.
    asked = (*IDS, "--max-tokens", "3", "--ignore-eos", "--json")
    code, out, _ = rlt(str(FOLDER), *asked, "--exit-policy", "trace", "--trace", "4,1,3")
    assert code == 0
    assert json.loads(out)["exit_depths"] == [4, 1, 3]
