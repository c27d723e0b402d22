"""Which tile a product uses: a table tuned once per chip, and a sound guess for other shapes.

No tile changes a bit of a result, so the table is about speed alone.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

# Row counts that are tuned apart; a count uses the next one at or above it. 320 and 2432 stand for
# 256 and 2048 prompt rows with decode rows beside them: a row tile more can be another round of
# processors.
BUCKETS = (1, 16, 32, 64, 128, 256, 320, 512, 1024, 2048, 2432, 8192)
_MANY = 256  # above it tiles suit any count, and differ in how well they fill the chip
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one product is cut up. bm rows, bn weight rows, bk of K a step, `stages` steps ahead.

    kind "rows": one program a tile, loads by address; "many": as many programs as the chip has
    processors, loads by tensor descriptors. swap: the weight is the left operand. peel, pre:
    elements of every weight row loaded ("rows" alone), and asked into L2, before the kernel in
    front has ended.
    group: row tiles that share a weight tile in L2. special: loads in a warp of their own. apart:
    of linear_silu_mul, the plain product and then silu_mul over its results.
    """

    kind: Literal["rows", "many"]
    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    swap: bool = False
    peel: int = 0
    pre: int = 0
    group: int = 8
    special: bool = False
    apart: bool = False
    pdl: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what differs from the defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A product that is tuned apart. n: results a row; k: inner size; rows: one of BUCKETS."""

    op: Literal["linear", "linear_silu_mul"]
    dtype: str
    n: int
    k: int
    rows: int


def bucket(rows: int) -> int:
    """The tuned row count for `rows`."""
    return BUCKETS[min(bisect_left(BUCKETS, rows), len(BUCKETS) - 1)]


def table_name(chip: str) -> str:
    """File name of a chip's table: "NVIDIA H200" -> "nvidia_h200"."""
    return re.sub(r"[^a-z0-9]+", "_", chip.lower()).strip("_")


@lru_cache(maxsize=8)
def load_table(chip: str) -> dict[Key, Tile]:
    """The package's table for a chip (torch.cuda.get_device_name); empty where there is none."""
    file = resources.files("rlt_kernels") / "tuned" / f"{table_name(chip)}.json"
    if not file.is_file():
        return {}
    return parse_table(json.loads(file.read_text()))


def parse_table(data: dict[str, Any]) -> dict[Key, Tile]:
    """{"entries": [{op, dtype, n, k, rows, tile, ...}]} -> tiles by key."""
    names = [field.name for field in fields(Key)]
    return {
        Key(**{name: entry[name] for name in names}): Tile(**entry["tile"])
        for entry in data["entries"]
    }


def choose(chip: str, capability: tuple[int, int], key: Key) -> Tile:
    """The tile tuned for these rows, or where they are many for the next more; a guess for shapes
    that nobody tuned."""
    table = load_table(chip)
    counts = [c for c in BUCKETS if c >= key.rows] if key.rows > _MANY else [key.rows]
    tuned = (table.get(replace(key, rows=count)) for count in counts)
    return next((tile for tile in tuned if tile is not None), None) or guess(key, capability)


def guess(key: Key, capability: tuple[int, int]) -> Tile:
    """A tile that fits any chip from sm_80 on, any shape and any dtype."""
    pdl = capability >= (9, 0)
    pairs = key.op == "linear_silu_mul"
    if key.dtype == "float32":
        bm = 16 if key.rows <= 16 else 32
        return Tile(kind="rows", bm=bm, bn=32, bk=32, stages=3, warps=4, pdl=pdl)
    width = _power_of_two(key.n * (2 if pairs else 1), 16, 128)
    if key.rows >= 512 and width == 128 and capability >= (9, 0) and can_describe(key):
        return Tile(kind="many", bm=128, bn=256, bk=64, stages=3, warps=8)
    bk = _power_of_two(key.k, 16, 128)
    if key.rows <= 16:
        narrow = 16 if key.n < 4096 else 32
        return Tile(
            kind="rows", bm=16, bn=min(narrow, width), bk=bk, stages=5, warps=4, swap=True, pdl=pdl
        )
    bm = min(key.rows, 128)
    bn = min(width, 32 if key.rows <= 32 else 64 if key.rows <= 128 else 128)
    return Tile(kind="rows", bm=bm, bn=bn, bk=min(bk, 64), stages=4, warps=4, pdl=pdl)


def can_describe(key: Key) -> bool:
    """Whether tensor descriptors can address rows of this length (a multiple of 16 bytes)."""
    return key.k * DTYPE_BYTES[key.dtype] % 16 == 0


def _power_of_two(size: int, least: int, most: int) -> int:
    """The power of two at or above `size`, within bounds that are powers of two."""
    return min(max(1 << max(size - 1, 1).bit_length(), least), most)
