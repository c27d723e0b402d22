"""Files with a row of numbers per position: the "table" options of a model. Imports no torch.

Client and stage read them on the same host, as data: .safetensors, or .npy without pickle.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from rlt_core.contract.errors import RequestError

NAMES = ("table", "state_table")  # of the tensor to take where a file holds several
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A table by its absolute path and the SHA-256 of the whole file, in hexadecimal."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a file holds: values float32 [positions, columns], all finite."""

    file: TableFile
    values: NDArray[np.float32]


def read_table(option: str, path: str) -> Table:
    """The table in a file; RequestError naming the option, with what is wrong with the file."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise RequestError(option, f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise RequestError(option, f"{path} cannot be read ({error})") from None
    kind = Path(path).suffix.lower()
    if kind not in (".safetensors", ".npy"):
        raise RequestError(option, f"{path} is neither a .safetensors nor an .npy file")
    try:
        array = _safetensors(data) if kind == ".safetensors" else _npy(data)
    except (safetensors.SafetensorError, ValueError, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(option, f"{path}: {reason}") from None
    values = _checked(option, path, array)
    file = TableFile(path=path, digest=hashlib.sha256(data).hexdigest())
    return Table(file=file, values=values)


def check_table_shape(
    option: str, path: str, shape: tuple[int, ...], *, num_rows: int, width: int
) -> None:
    """RequestError unless a table [n, width] has a row for every position of the request."""
    if shape[1] != width:
        raise RequestError(option, f"{path} has {shape[1]} columns; the model takes {width}")
    if shape[0] < num_rows:
        reason = f"{path} has {shape[0]} rows; prompt and outputs may take {num_rows} positions"
        raise RequestError(option, reason)


def _safetensors(data: bytes) -> NDArray[Any]:
    read: Any = safetensors.deserialize
    tensors = dict(read(data))
    found = [name for name in NAMES if name in tensors][:1] or list(tensors)
    if len(found) != 1:
        listed = ", ".join(sorted(tensors)[:4]) or "none"
        raise ValueError(f"it needs one tensor, or one named {NAMES[0]}; it has {listed}")
    tensor = tensors[found[0]]
    dtype, shape = str(tensor["dtype"]), tensor["shape"]
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype}; a table is of {', '.join(_DTYPES)}")
    array: NDArray[Any] = np.frombuffer(tensor["data"], _DTYPES[dtype]).reshape(shape)
    # bfloat16 is the upper half of a float32.
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array


def _npy(data: bytes) -> NDArray[Any]:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive, not one array")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"dtype {array.dtype}; a table holds real numbers")
    return array


def _checked(option: str, path: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if array.ndim != 2 or 0 in array.shape:
        reason = f"{path} has shape {list(array.shape)}; a table is [positions, columns]"
        raise RequestError(option, reason)
    with np.errstate(over="ignore"):
        values: NDArray[np.float32] = array.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        row, column = (int(axis[0]) for axis in (~finite).nonzero())
        reason = f"{array[row, column]} in row {row}, column {column} is no finite float32"
        raise RequestError(option, f"{path}: {reason}")
    return values
