"""A model's own options as they travel to the device at admission (SlotParams.options)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_TABLES = 16  # different ones of an option, in use at once


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpload:
    """A table of option `name` that goes to place `index`; values float32 [positions, columns].

    alone: no other table of the option is in use, so that their memory can go.
    """

    name: str
    index: int
    values: NDArray[np.float32]
    alone: bool


@dataclass(slots=True, kw_only=True)
class OptionColumns:
    """A model's options of A requests: an array [A] per scalar (float32, int64 or bool) and per
    table the place of the request's own (int64, -1 for none).

    chains: bool [A], requests that read their predecessor's state. uploads: tables that are not
    on the device yet; one that takes another's place comes when nobody uses that any more.
    """

    scalars: dict[str, NDArray[np.float32] | NDArray[np.int64] | NDArray[np.bool_]]
    tables: dict[str, NDArray[np.int64]]
    chains: NDArray[np.bool_]
    uploads: list[TableUpload]
