"""Files of random start states, for requests that set a table option."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from rlt_core.runtime.table_file import TableFile, read_table
from tests.engines import MAX_LEN


@lru_cache(maxsize=64)
def start_states(width: int, seed: int, rows: int = MAX_LEN) -> TableFile:
    """A table [rows, width] of standard normal numbers; the file is gone when Python ends."""
    values = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    path = _folder() / f"{width}_{seed}_{rows}.npy"
    np.save(path, values)
    return read_table("state_table", str(path)).file


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rlt-start-states-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
