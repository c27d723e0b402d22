"""Checks that a row's result depends on no other row (ROW_COMPACTION), to the bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.model import METHODS_HOLD
from rlt_core.testing.checks.rig import NUM_ROWS, Rig
from rlt_core.testing.checks.subjects import SEED, ModelSubject

_COUNTS = (1, 3, 7, 33)


@check("model", word=Word.ROW_COMPACTION, after=METHODS_HOLD)
def check_rows_neighbours(model: ModelSubject) -> None:
    """A row keeps its bits when the rows beside it hold something else.

    If this fails: something is computed over dimension 0 (a mean, a maximum, a scale of the whole
    batch); normalise over the last dimension.
    """
    rig = model.rig
    mine = torch.arange(NUM_ROWS) < NUM_ROWS // 2  # whole texts: they see no key of the others
    noise = torch.randn(rig.text.coda.shape, generator=torch.Generator().manual_seed(SEED))
    other = (rig.tokens + 1) % rig.plan.shape.vocab_size
    tokens = torch.where(mine, rig.tokens, other)

    def disturbed(state: Tensor) -> Tensor:
        return torch.where(mine[:, None], state, state * 3 + noise)

    results = _all_methods(rig, rig.all, tokens, disturbed)
    _expect_same(rig, results, mine.nonzero()[:, 0], mine.nonzero()[:, 0], "other neighbours")


@check("model", word=Word.ROW_COMPACTION, after=(check_rows_neighbours,))
def check_rows_count(model: ModelSubject) -> None:
    """A row keeps its bits whatever the number of rows: 1, 3, 7 and 33 against 256.

    If this fails: a product or reduction of your own changes its order with the row count; use
    ctx.ops, whose operators have one order.
    """
    rig = model.rig
    for count in _COUNTS:
        rows = rig.all[:count]
        results = _all_methods(rig, rows, rig.tokens[rows])
        _expect_same(rig, results, torch.arange(count), rows, f"{count} rows and {NUM_ROWS}")


@check("model", word=Word.ROW_COMPACTION, after=(check_rows_count,))
def check_rows_place(model: ModelSubject) -> None:
    """A row keeps its bits wherever it stands in the launch: rows are moved, positions stay.

    If this fails: use ctx.positions, never the row's number; and no operator whose bits change
    with an element's place (torch.sigmoid is one).
    """
    rig = model.rig
    rows = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(SEED))
    results = _all_methods(rig, rows, rig.tokens[rows])
    _expect_same(rig, results, torch.arange(NUM_ROWS), rows, "another place")


@check("model", word=Word.ROW_COMPACTION, after=(check_rows_place,))
def check_rows_depths(model: ModelSubject) -> None:
    """Rows at different depths in one launch give what each gives among rows of its own depth.

    If this fails: ctx.depth is a tensor with one value a row; compare and index with it row by
    row, never with its maximum or its first entry.
    """
    rig = model.rig
    depth = 1 + rig.all % rig.loops
    before = rig.text.states[depth - 1, rig.all]
    state = rig.loop(before, depth=depth)
    same = (state == rig.text.states[depth, rig.all]).all(1)
    differing = int((~same).sum())
    expect(differing == 0, "the bits of loop in a launch of many depths", f"{differing} rows vary")


Results = dict[str, Tensor]


def _same(state: Tensor) -> Tensor:
    return state


def _all_methods(
    rig: Rig, rows: Tensor, tokens: Tensor, changed: Callable[[Tensor], Tensor] = _same
) -> Results:
    """Every method on these rows, each from the right inputs, `changed`."""
    text = rig.text
    results: Results = {"prelude": rig.prelude(rows, tokens)}
    for depth in (1, rig.loops):
        given = changed(text.states[depth - 1, rows])
        results[f"loop {depth}"] = rig.loop(given, rows, depth)
    last, before = changed(text.states[-1, rows]), changed(text.states[-2, rows])
    results |= {f"signal {k}": v for k, v in rig.signals(last, before, rows).items()}
    results["coda"] = rig.coda(last, rows)
    results["head"] = rig.head(changed(text.coda[rows]), rows)
    return results


def _expect_same(rig: Rig, results: Results, at: Tensor, rows: Tensor, what: str) -> None:
    """results[at] against what the texts gave for `rows`."""
    text = rig.text
    right = {"prelude": text.states[0], "coda": text.coda, "head": text.logits}
    right |= {"loop 1": text.states[1], f"loop {rig.loops}": text.states[-1]}
    right |= {f"signal {name}": value for name, value in text.signals.items()}
    for name, value in results.items():
        same = (value[at] == right[name][rows]).reshape(len(rows), -1).all(1)
        texts = f"{int((~same).sum())} of {len(rows)} rows have others"
        expect(bool(same.all()), f"the same bits of {name} with {what}", texts)
