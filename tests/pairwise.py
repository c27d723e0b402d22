"""A small pairwise cover: rows of factor values in which every pair that can occur does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

Row = dict[str, object]
Pair = frozenset[tuple[str, object]]


def pairs_of(row: Mapping[str, object]) -> set[Pair]:
    """All pairs of (factor, value) in a row."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def cover(
    factors: Mapping[str, Sequence[object]], legal: Callable[[Row], bool], draw: random.Random
) -> list[Row]:
    """Rows that together hold every pair of values that some legal row holds.

    Greedy: each row starts from a pair that is still missing, and of a few random completions
    the one with the most missing pairs is taken. A pair without a legal completion in many
    tries is left out.
    """
    singles = [(name, value) for name, values in factors.items() for value in values]
    missing = {frozenset(pair) for pair in combinations(singles, 2) if pair[0][0] != pair[1][0]}
    rows: list[Row] = []
    while missing:
        start = min(missing, key=lambda pair: sorted(map(str, pair)))
        best = _best(_completions(start, factors, legal, draw), missing)
        if best is None:
            missing.remove(start)
        else:
            rows.append(best)
            missing -= pairs_of(best)
    return rows


def _completions(
    start: Pair,
    factors: Mapping[str, Sequence[object]],
    legal: Callable[[Row], bool],
    draw: random.Random,
) -> Iterable[Row]:
    found = 0
    for _ in range(400):
        row = {name: draw.choice(values) for name, values in factors.items()} | dict(start)
        if legal(row):
            found += 1
            yield row
        if found == 20:
            return


def _best(rows: Iterable[Row], missing: set[Pair]) -> Row | None:
    return max(rows, key=lambda row: len(pairs_of(row) & missing), default=None)
