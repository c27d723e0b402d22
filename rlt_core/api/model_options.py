"""A model's own options as a request gives them (`extra`), read against what the model declares."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlt_core.api.depths import check_param
from rlt_core.api.sampling_params import MAX_SEED, check_integer, check_number
from rlt_core.contract.errors import RequestError
from rlt_core.contract.specs import STATE_SEED, ParamSpec
from rlt_core.runtime.option_columns import MAX_TABLES
from rlt_core.runtime.table_file import TableFile, check_table_shape, read_table
from rlt_core.stage.messages import StageReport


@dataclass(slots=True, kw_only=True)
class RequestOptions:
    """The options of one request, as EngineRequest takes them; defaults are left out."""

    state_seed: int = 0
    options: dict[str, bool | int | float] = field(default_factory=dict)
    tables: dict[str, TableFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file that was read: as it lay there, what it is, and its table's shape."""

    stamp: tuple[int, int, int]
    file: TableFile
    shape: tuple[int, ...]


class OptionReader:
    """Checks names, types and ranges; a table that many requests name is read once."""

    def __init__(self, report: StageReport) -> None:
        self._model, self._widths = report.model, report.table_widths
        self._specs = {spec.name: spec for spec in report.model_options}
        self._default_seed = int(self._specs[STATE_SEED].default or 0) if self._has_seed else 0
        self._seen: dict[str, _Seen] = {}

    def read(self, extra: Mapping[str, Any] | None, num_positions: int) -> RequestOptions:
        """The options of a request that may take so many positions; RequestError naming the
        option that is unknown, of another type, out of range or a file that cannot be used."""
        found = RequestOptions(state_seed=self._default_seed)
        for name, value in (extra or {}).items():
            spec = self._specs.get(name)
            if spec is None:
                raise RequestError(name, self._unknown(name))
            if spec.kind == "table":
                found.tables[name] = self._table(name, value, num_positions)
            elif name == STATE_SEED:
                found.state_seed = int(_scalar(spec, value))
            else:
                found.options[name] = _scalar(spec, value)
        return found

    @property
    def _has_seed(self) -> bool:
        return STATE_SEED in self._specs

    def _unknown(self, name: str) -> str:
        if not self._specs:
            return f"model '{self._model}' declares no options of its own"
        near = difflib.get_close_matches(name, self._specs, n=2)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        return f"model '{self._model}' has no such option{hint}; it has {', '.join(self._specs)}"

    def _table(self, name: str, value: object, num_positions: int) -> TableFile:
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise RequestError(name, f"{value!r} is not the path of a file")
        path = os.path.abspath(os.path.expanduser(os.fsdecode(value)))
        stamp = _stamp(path)
        seen = self._seen.get(path)
        if seen is None or seen.stamp != stamp:
            table = read_table(name, path)
            seen = _Seen(stamp, table.file, table.values.shape)
            if len(self._seen) >= MAX_TABLES:
                self._seen.clear()
            self._seen[path] = seen
        width = self._widths[name]
        check_table_shape(name, path, seen.shape, num_rows=num_positions, width=width)
        return seen.file


def _scalar(spec: ParamSpec, value: Any) -> bool | int | float:
    if spec.kind == "flag":
        if not isinstance(value, (bool, np.bool_)):
            raise RequestError(spec.name, f"{value!r} is not true or false")
        return bool(value)
    if isinstance(value, np.number):
        value = value.item()
    if spec.kind == "int":
        check_integer(spec.name, value, -MAX_SEED - 1, MAX_SEED)
        check_param(spec, value)
        return int(value)
    largest = float(np.finfo(np.float32).max)
    check_number(spec.name, value, -largest, largest)
    check_param(spec, value)
    return float(value)


def _stamp(path: str) -> tuple[int, int, int]:
    """What tells that a file is another one than before; zeros for none."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
