"""Files of a model's table options: every format, and everything that may be wrong with one."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import save_file

from rlt_core.api.model_options import OptionReader
from rlt_core.runtime.table_file import read_table
from tests.test_options_api import SERVED, refused, saved, values


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
