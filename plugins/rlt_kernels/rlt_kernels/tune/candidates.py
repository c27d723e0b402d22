"""The tiles worth trying for a shape and a row count: first a spread, then changes of the best.

A decode product streams its weight, so what matters is the number of programs and the bytes that
each has in flight; a prompt product is bound by the tensor cores, so what matters is tiles that
are large enough to feed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rlt_kernels.tiles import Key, Tile

SHARED_BYTES = 227 * 1024
# The tile that every other one is compared with, bit by bit.
REFERENCE = Tile(kind="rows", bm=16, bn=32, bk=128, stages=3, warps=4, pdl=False)

# bm, bn, bk, stages, warps; the weight is the left operand, except where said otherwise
_FEW = (
    *((16, 128, 8, 1), (16, 128, 8, 2), (16, 256, 6, 2), (16, 256, 6, 4), (16, 256, 8, 4)),
    *((16, 512, 4, 4), (32, 64, 8, 2), (32, 128, 6, 2), (32, 128, 6, 4), (32, 256, 4, 4)),
    *((64, 64, 8, 4), (64, 128, 4, 4), (64, 128, 6, 4), (64, 256, 3, 8)),
)
_FEW_TMA = ((32, 128, 6, 4), (64, 64, 8, 4), (64, 128, 6, 4), (64, 256, 4, 4), (128, 64, 6, 4))
_SWAPPED = {
    32: ((16, 256, 5, 4), (32, 128, 6, 4), (32, 256, 4, 4), (64, 64, 8, 4), (64, 128, 5, 4)),
    64: ((32, 128, 5, 4), (64, 64, 8, 4), (64, 128, 4, 4), (128, 64, 5, 4), (128, 64, 5, 8)),
    128: ((32, 128, 4, 4), (64, 64, 6, 4), (64, 128, 4, 4), (128, 64, 5, 4), (128, 64, 5, 8)),
    256: ((64, 64, 5, 4), (64, 64, 5, 8), (128, 64, 4, 8)),
}
_STRAIGHT = {
    32: ((32, 128, 6, 4), (64, 64, 6, 4)),
    64: ((16, 128, 6, 4), (32, 128, 5, 4), (64, 64, 6, 4), (64, 128, 4, 4), (128, 64, 5, 4)),
    128: ((32, 64, 8, 4), (32, 128, 4, 4), (64, 64, 6, 4), (64, 64, 6, 8), (128, 64, 5, 8)),
    256: ((64, 64, 5, 4), (64, 64, 5, 8), (128, 64, 4, 8)),
}
# bm, bn, bk, stages, warps of programs that walk the tiles
_WALKING = {
    64: ((64, 32, 128, 5, 4), (64, 64, 64, 8, 4), (64, 64, 128, 4, 4), (64, 128, 64, 6, 4)),
    128: (
        *((64, 64, 128, 5, 4), (128, 32, 128, 4, 4), (128, 64, 64, 6, 4), (128, 64, 128, 3, 4)),
        *((128, 128, 64, 5, 8), (64, 128, 64, 6, 4)),
    ),
    256: (
        *((128, 64, 64, 6, 4), (128, 64, 64, 6, 8), (128, 128, 64, 5, 8), (128, 128, 64, 4, 4)),
        *((256, 64, 64, 4, 8), (128, 256, 64, 3, 8), (64, 128, 64, 6, 4)),
    ),
    2048: (
        *((128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (256, 128, 64, 3, 8), (256, 128, 64, 4, 8)),
        *((128, 128, 64, 4, 4), (128, 128, 64, 5, 8), (128, 128, 128, 3, 8)),
    ),
}


def first_tiles(key: Key, *, special: bool) -> list[Tile]:
    """The spread. special: also tiles whose loads have a warp of their own."""
    tiles = _few(key.rows) if key.rows <= 16 else list(_more(key.rows))
    if key.op == "linear_silu_mul" and key.rows >= 2048:
        tiles += [replace(tile, apart=True) for tile in tiles if _large(tile)]
    if special and key.rows >= 256:
        tiles += [replace(t, special=True, stages=min(t.stages, 3)) for t in tiles if _large(t)]
    return [tile for tile in tiles if fits(tile, key)]


def next_tiles(best: Iterable[Tile], key: Key) -> list[Tile]:
    """Changes of the best few: how much is asked for ahead, groups, depth of the pipeline."""
    found: dict[Tile, None] = {}
    for tile in best:
        for changed in _changes(tile, key):
            if fits(changed, key):
                found[changed] = None
    return list(found)


def fits(tile: Tile, key: Key) -> bool:
    """Whether shared memory holds its stages, and its reading ahead lies inside a row."""
    in_flight = (tile.bm + tile.bn) * tile.bk * 2 * tile.stages
    steps = tile.peel + tile.pre <= key.k and (tile.bk <= key.k)
    return in_flight <= SHARED_BYTES and steps and key.k % 8 == 0


def _few(rows: int) -> list[Tile]:
    bm = 8 if rows == 1 else 16
    tiles = [_rows(bm, *numbers, swap=True) for numbers in _FEW]
    tiles += [_walking(16, *numbers, swap=True) for numbers in _FEW_TMA]
    return tiles + [_rows(16, 32, 128, 6, 4), _rows(16, 64, 128, 5, 4)]


def _more(rows: int) -> Iterator[Tile]:
    if rows in _SWAPPED:
        yield from (_rows(min(rows, 128), *numbers, swap=True) for numbers in _SWAPPED[rows])
        yield from (_rows(min(rows, 128), *numbers) for numbers in _STRAIGHT[rows])
    if rows in (32, 64, 128):
        yield from (_walking(rows, *numbers, swap=True) for numbers in _FEW_TMA)
    yield from (_walking(*numbers) for numbers in _WALKING.get(min(rows, 2048), ()))
    if rows in (320, 512, 1024):
        yield from (_walking(*numbers) for numbers in _WALKING[256] + _WALKING[2048])
    if rows >= 320:
        yield _rows(128, 128, 64, 4, 8)


def _changes(tile: Tile, key: Key) -> Iterator[Tile]:
    yield replace(tile, pdl=False)
    yield replace(tile, stages=tile.stages + 2)
    yield replace(tile, stages=max(tile.stages - 2, 2))
    if tile.kind == "many":
        yield from (replace(tile, group=group) for group in (4, 16))
        if key.rows <= 256:
            yield from (replace(tile, pre=pre) for pre in (512, 1024, 2048))
        return
    room = (key.k - tile.bk) % tile.bk == 0
    if room and tile.bn * tile.bk <= 16384:
        yield replace(tile, peel=tile.bk)
    for pre in (512, 1024, 2048):
        yield replace(tile, pre=pre)
    if room and tile.bn * tile.bk <= 16384:
        yield replace(tile, peel=tile.bk, pre=1024)


def _large(tile: Tile) -> bool:
    return tile.kind == "many" and tile.bm * tile.bn >= 128 * 128 and not tile.swap


def _rows(bm: int, bn: int, bk: int, stages: int, warps: int, *, swap: bool = False) -> Tile:
    return Tile(kind="rows", bm=bm, bn=bn, bk=bk, stages=stages, warps=warps, swap=swap)


def _walking(bm: int, bn: int, bk: int, stages: int, warps: int, *, swap: bool = False) -> Tile:
    return Tile(kind="many", bm=bm, bn=bn, bk=bk, stages=stages, warps=warps, swap=swap)
