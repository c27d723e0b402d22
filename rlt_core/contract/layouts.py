"""A KV layout as data: int tables that a tick indexes by row.

Depths count from 1, planes from 0. The tables speak of per-depth tracks; a boundary track has
the single plane 0. `PlaneRule.write[d - 1]` is the plane that loop d writes, `read[d - 1]` the
plane in which it finds every position, its own included, so both name the same plane; and
`fill[e - 1]` the planes that receive the values of plane `write[e - 1]` when a row exits at depth
e. Loops that are to find other values of earlier positions get them by `fill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneRule:
    """Which plane each depth writes and reads, and what an exit fills in."""

    write: tuple[int, ...]
    read: tuple[int, ...]
    fill: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTables:
    """The layout of one request that uses D loops.

    num_planes: planes with pages while the prompt runs. prompt / decode: the rules for prompt
    positions and for generated ones. prompt_order: "depth" (a chunk runs all its positions one
    depth at a time) or "position" (all loops of one position before the next).
    kept: the planes that keep (and later get) pages once the prompt is done.
    missing: what a reader finds of a position whose row left before it wrote the plane. "filled":
    the plane itself, which an exit fills or the rules never miss. "hidden": nothing, as if the
    position were absent; then loop d writes plane d - 1, no exit fills, and the layout's spec
    needs `hidden_keys` of the attention backend. A position of KV depth e is seen in planes
    0 .. e - 1; its own position a row always sees.
    """

    num_planes: int
    prompt: PlaneRule
    decode: PlaneRule
    prompt_order: Literal["depth", "position"]
    kept: tuple[int, ...]
    missing: Literal["filled", "hidden"] = "filled"

    @property
    def replay_is_serial(self) -> bool:
        """Whether known generated tokens must be replayed one position at a time: two depths of
        a later position would overwrite each other while an earlier one is still running, or
        would read planes that the exit of an earlier one is still to fill."""
        write, fill = self.decode.write, self.decode.fill
        fills_back = any({*fill[e - 1]} & {*write[:e]} for e in range(1, len(fill) + 1))
        return len({*write}) < len(write) or fills_back


class KVLayout(Protocol):
    def tables(self, loops: int) -> LayoutTables:
        """The tables of a request that uses `loops` loops."""
        ...
